"""chDB's extension module, loaded without chDB's Python package.

`import chdb` opens an engine in memory and closes it again before ours is opened, which costs 0.3 s, wants a writable
/tmp, and brings pandas; none of it is used here.
"""

import ctypes
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_RTLD_DEEPBIND = 0x8


def _load():
    spec = importlib.util.find_spec("chdb")
    library = str(Path(spec.submodule_search_locations[0]) / "_chdb.abi3.so")
    # As chDB does it: its own allocator must win over one that another library brought into the process.
    ctypes.CDLL(library, mode=sys.getdlopenflags() | _RTLD_DEEPBIND)
    loader = importlib.machinery.ExtensionFileLoader("_chdb", library)
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("_chdb", library, loader=loader))
    # The library looks for its Python-version part in the current folder.
    before = os.getcwd()
    os.chdir(Path(library).parent)
    try:
        loader.exec_module(module)
    finally:
        os.chdir(before)
    return module


chdb = _load()
