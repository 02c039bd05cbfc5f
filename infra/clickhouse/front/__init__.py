"""ClickHouse's HTTP interface in front of chDB.

The path of one request: server.py (connections, bounds) -> auth.py (who) -> request.py (what was asked)
-> policy.py (whether they may) -> query.py or insert.py (the engine's work, through engine.py) -> the answer.

Invariants: one chDB connection per request, never reused; no byte of an INSERT is committed before the whole body
has arrived; whoever hangs up cancels their query; nothing is held without a bound, and options.py states each bound.
"""
