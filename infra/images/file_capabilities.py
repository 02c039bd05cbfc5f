"""Writes a tar archive of one executable with Linux file capabilities, without needing any privilege.

An image's builder drops capabilities when it copies a file, and setting them in a later step stores the file twice. What
`ADD` unpacks keeps them: they are an extended attribute of the archive's entry, which nobody but the kernel has to allow.

usage: file_capabilities.py FILE PATH-IN-THE-IMAGE CAPABILITY,... >ARCHIVE
"""

import struct
import sys
import tarfile
from pathlib import Path

# include/uapi/linux/capability.h
BITS = {
    "cap_dac_read_search": 2,
    "cap_sys_ptrace": 19,
    "cap_sys_admin": 21,
    "cap_syslog": 34,
    "cap_perfmon": 38,
    "cap_bpf": 39,
    "cap_checkpoint_restore": 40,
}
# VFS_CAP_REVISION_2 without VFS_CAP_FLAGS_EFFECTIVE. Permitted only: with the flag, the kernel would refuse to start the
# executable wherever one of the capabilities is withheld; without it, the agent raises those that it was left.
REVISION_2 = 0x02000000


def attribute(names: list[str]) -> bytes:
    """Returns the value of `security.capability`: revision, then permitted and inheritable, low words before high ones."""
    unknown = [name for name in names if name not in BITS]
    if unknown:
        raise SystemExit(f"file_capabilities.py: {', '.join(unknown)} is not one of {', '.join(BITS)}")
    permitted = sum(1 << BITS[name] for name in set(names))
    return struct.pack("<5I", REVISION_2, permitted & 0xFFFFFFFF, 0, permitted >> 32, 0)


def main() -> None:
    """Writes the archive to standard output."""
    if len(sys.argv) != 4:
        raise SystemExit(__doc__.rsplit("\n\n", 1)[1])
    source, inside, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
    entry = tarfile.TarInfo(inside.lstrip("/"))
    entry.size, entry.mode = source.stat().st_size, 0o755
    # As text that encodes back to the same bytes: `tarfile` writes what is no UTF-8 as it is.
    entry.pax_headers = {"SCHILY.xattr.security.capability": attribute(names).decode("utf-8", "surrogateescape")}
    with source.open("rb") as file, tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(entry, file)


main()
