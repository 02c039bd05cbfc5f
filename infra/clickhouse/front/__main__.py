"""Starts the front: `python -m front --help` names every flag."""

import asyncio
import errno
import fcntl
import logging
import signal
import sys

# Imported before the sandbox, because it reads /etc/mime.types; it starts no thread.
import aiohttp.web  # noqa: F401

from . import options as settings
from . import sandbox

log = logging.getLogger("front")


def main() -> int:
    """Returns 0 after SIGTERM or SIGINT, 2 when it cannot start."""
    try:
        options = settings.parse()
        _log_to(options.log_file)
        with _lock(options.data_dir):
            _enter_sandbox(options)
            return asyncio.run(_serve(options))
    except settings.ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _log_to(path) -> None:
    logging.basicConfig(filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")


def _lock(data_dir):
    # The kernel lets go of it when the process dies, however it dies: there is no stale lock after kill -9.
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = open(data_dir.with_name(data_dir.name + ".lock"), "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise settings.ConfigError(f"{data_dir} is open in another engine: stop it, or choose another folder with --data-dir") from None
    return file


def _enter_sandbox(options: settings.Options) -> None:
    if options.sandbox == "off":
        log.warning("sandbox is off: only the front's own checks keep queries from files and network")
        return
    try:
        log.info("sandbox forbids: %s", sandbox.enter(options.data_dir))
    except (sandbox.Unavailable, OSError) as error:
        if options.sandbox == "on":
            raise settings.ConfigError(f"--sandbox=on, but Landlock cannot be had: {error}; use --sandbox=auto to start without") from error
        log.warning("no Landlock (%s): only the front's own checks keep queries from files and network", error)


async def _serve(options: settings.Options) -> int:
    # Imported here: loading the engine starts threads, and a sandbox holds only for threads started after it.
    from .engine import Engine
    from .server import Server

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    engine = Engine(options)
    server = Server(options, engine)
    try:
        listener = await _listen(options, server)
        log.info("ClickHouse %s answers on http://%s:%d, data in %s", engine.version, options.host, options.port, options.data_dir)
        await stop.wait()
        log.info("stopping: %d requests are running", len(server.active))
        listener.close()
        if server.active:
            await asyncio.wait(server.active, timeout=options.stop_timeout_s)
        for task in list(server.active):
            task.cancel()
        await server.shutdown(1.0)
    finally:
        await engine.close()
        log.info("stopped")
    return 0


async def _listen(options: settings.Options, server):
    try:
        return await asyncio.get_running_loop().create_server(server, options.host, options.port, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise settings.ConfigError(
                f"port {options.port} on {options.host} is in use: stop who holds it (`ss -ltnp 'sport = :{options.port}'`), or choose another with --port"
            ) from error
        raise settings.ConfigError(f"cannot listen on {options.host}:{options.port}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
