"""A filter of system calls: what no kernel text needs, and attacks on the operating system do.

Namespaces, mounts, debuggers, rings, keyrings, BPF and kernel modules: each of them has let
unprivileged processes out of a sandbox before. Refused calls fail with EPERM; clone3, whose flags a
filter cannot see, with ENOSYS, upon which libc uses clone.
"""

from __future__ import annotations

import ctypes
import os
import struct

PR_GET_SECCOMP, PR_SET_SECCOMP, FILTER = 21, 22, 2
X86_64, X32_BIT = 0xC000003E, 0x40000000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
CLONE, CLONE3, NEW_NAMESPACES = 56, 435, 0x7E020000

# Numbers of x86-64, the only machine for which libtpu is made.
REFUSED = {
    "ptrace": 101,
    "pivot_root": 155,
    "chroot": 161,
    "mount": 165,
    "umount2": 166,
    "init_module": 175,
    "delete_module": 176,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "finit_module": 313,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
}

_libc = ctypes.CDLL(None, use_errno=True)


def available() -> bool:
    """Whether this machine can filter system calls."""
    return os.uname().machine == "x86_64" and _libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0


def refuse() -> None:
    """Installs the filter for this process and all that it starts; there is no way back.

    Privileges must not be gainable any more (PR_SET_NO_NEW_PRIVS).

    Raises:
        OSError: If the kernel refuses the filter.
    """
    numbers = sorted(REFUSED.values())
    # (operation, value, on yes, on no); jumps name their targets.
    program = [
        (LOAD, ARCHITECTURE, "", ""),
        (EQUAL, X86_64, "", "eperm"),
        (LOAD, NUMBER, "", ""),
        (AT_LEAST, X32_BIT, "eperm", ""),
        *((EQUAL, number, "eperm", "") for number in numbers),
        (EQUAL, CLONE3, "enosys", ""),
        (EQUAL, CLONE, "", "allow"),
        (LOAD, FIRST_ARGUMENT, "", ""),
        (ANY_BIT, NEW_NAMESPACES, "eperm", "allow"),
    ]
    places = {"allow": len(program), "eperm": len(program) + 1, "enosys": len(program) + 2}
    code = b"".join(
        struct.pack(
            "=HBBI",
            operation,
            places[yes] - place - 1 if yes else 0,
            places[no] - place - 1 if no else 0,
            value,
        )
        for place, (operation, value, yes, no) in enumerate(program)
    )
    code += b"".join(struct.pack("=HBBI", RETURN, 0, 0, value) for value in (ALLOW, EPERM, ENOSYS))
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    if _libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.create_string_buffer(header, len(header)), 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")
