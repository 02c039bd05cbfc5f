//! One `mmap(2)` that is unmapped when dropped.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Memory shared with the kernel. Handed out as a pointer only: the other side writes to it at any time.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

/// What may be done with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only looked at.
    Read,
    /// Written, too.
    ReadWrite,
}

impl Mapping {
    /// Maps `bytes` of `fd` from `offset`.
    pub fn new(fd: BorrowedFd<'_>, offset: usize, bytes: usize, access: Access) -> io::Result<Self> {
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the kernel's choosing touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, bytes })
    }

    /// Returns the address of the byte at `offset`, or `None` past the end.
    pub fn at(&self, offset: usize) -> Option<*mut u8> {
        // SAFETY: inside of the one mapping, by the check.
        (offset < self.bytes).then(|| unsafe { self.start.as_ptr().add(offset) })
    }
}

// SAFETY: the memory belongs to no thread; who may touch it when is each user's affair, and needs `&` or `&mut` of it.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, unmapped once, and every pointer into it lives shorter than self.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Returns the size of a page.
pub fn page_bytes() -> usize {
    // SAFETY: reads a constant of the process.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
