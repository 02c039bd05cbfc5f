"""Stands in for the service manager: starts a command, and waits for a word on its notification socket.

usage: notified.py SOCKET SECONDS WORD -- COMMAND...

Exit code 0 when the word came and the command then ended well after SIGTERM.
"""

import os
import socket
import subprocess
import sys
import time


def main() -> int:
    """Returns the exit code."""
    path, patience, word = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    command = sys.argv[sys.argv.index("--") + 1 :]
    if os.path.exists(path):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(path)
    os.chmod(path, 0o777)
    process = subprocess.Popen(command, env={**os.environ, "NOTIFY_SOCKET": "/run/" + os.path.basename(path)})
    deadline, heard = time.monotonic() + patience, ""
    while word not in heard.splitlines() and time.monotonic() < deadline and process.poll() is None:
        listening.settimeout(0.5)
        try:
            heard = listening.recv(4096).decode()
        except TimeoutError:
            continue
    came = word in heard.splitlines()
    process.terminate()
    try:
        code = process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        code = "no end within 30 s"
    os.unlink(path)
    print(f"{word} {'came' if came else 'did not come'}; the command ended with {code}")
    return 0 if came and code == 0 else 1


sys.exit(main())
