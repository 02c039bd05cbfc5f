"""Landlock: the kernel's own wall around the engine, for both principals.

Should a query find a way past policy.py, the process can still read only its libraries and its data, and cannot open a
TCP connection to anybody. It needs no privilege, and cannot be taken off again.
"""

import ctypes
import os
import platform
import struct
import sys
from pathlib import Path

# The numbers are the same on x86-64 and arm64, and on every other architecture that got them (5.13).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_NO_NEW_PRIVS = 38
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
# All rights over files that ABI 1 knows, then what later versions added: refer (2), truncate (3).
_FS_ABI1 = (1 << 13) - 1
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_CONNECT_TCP = 1 << 1

# Read by the engine while it runs: sizes of caches and memory, time zones, the C library's own files. Not /etc as a
# whole. Of /proc/self only `maps`, where the C library finds the main thread's stack, and `auxv`: without it the engine
# looks for the same values behind the environment, which may have moved, and dies of what it finds there (SIGSEGV at
# start, seen in one start of five). `environ` is nobody's business.
_OWN = ("/proc/self/maps", "/proc/self/auxv")
_READABLE = (
    "/usr", "/lib", "/lib64", "/sys/devices/system", "/sys/fs/cgroup", "/sys/block", "/sys/kernel/mm",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/sys/vm", "/proc/sys/kernel",
    *_OWN, "/etc/localtime", "/etc/ld.so.cache", "/dev/null", "/dev/urandom", "/dev/random",
)  # fmt: skip


# Kept open for ever: a rule holds only while its inode does, and /proc makes inodes anew when nobody holds them.
_held: list[int] = []


class Unavailable(Exception):
    """The kernel has no Landlock, or has it switched off."""


def enter(data_dir: Path) -> str:
    """Shuts the process in and returns what is now forbidden. Call it before any thread is started."""
    if len(os.listdir("/proc/self/task")) > 1:
        raise Unavailable("threads are running already, and would stay outside")
    libc = ctypes.CDLL(None, use_errno=True)
    if platform.system() != "Linux":
        raise Unavailable("not Linux")
    abi = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _CREATE_RULESET_VERSION)
    if abi < 1:
        raise Unavailable(os.strerror(ctypes.get_errno()))
    files = _FS_ABI1 | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    network = _CONNECT_TCP if abi >= 4 else 0
    attributes = struct.pack("=QQ", files, network) if abi >= 4 else struct.pack("=Q", files)
    _held.extend(os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in _OWN)
    ruleset = _checked(libc, libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    try:
        _allow(libc, ruleset, data_dir, files)
        # Python imports late; the front's own modules and the two prefixes of a virtual environment.
        for path in {*_READABLE, sys.prefix, sys.base_prefix, str(Path(__file__).parent)}:
            if os.path.exists(path):
                rights = _EXECUTE | _READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE
                _allow(libc, ruleset, path, rights)
        _checked(libc, libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(libc, libc.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return "files outside the data folder" + (", outgoing TCP" if network else "")


def _allow(libc, ruleset: int, path, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, descriptor)
        _checked(libc, libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0))
    finally:
        os.close(descriptor)


def _checked(libc, result: int) -> int:
    if result < 0:
        raise Unavailable(os.strerror(ctypes.get_errno()))
    return result
