"""Starts sandboxed processes in milliseconds: jax is imported once, every job is a fork.

``python -I -S zygote.py FD WORK PACKAGES PATH [PATH ...]`` puts the directories PACKAGES (separated
by colons) on its path, imports the job modules PATH and listens on the inherited socket FD. A
request is one JSON object with two file descriptors: the job's own socket and the pipe that it may
write to. The zygote forks a supervisor for it, which builds the sandbox, forks the job into it,
watches time, memory and disk, kills all that is left and reports on the socket how it ended. The
job has only the pipe, and what it says there is not to be trusted. WORK is the directory of all
jobs' files; it goes when FD closes.

Standard library only, apart from what the job modules import.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
import traceback
import types

BACKSTOP = 8  # times the limit of time: even a job that never gets a processor ends
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 1, 2, 4, 32, 4096
MS_REC, MS_PRIVATE, MNT_DETACH = 16384, 1 << 18, 2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38

# Users that no file belongs to: systemd's range for dynamic users.
FIRST_UID, UIDS = 61184, 4000

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args) -> None:
    """Calls libc and raises OSError where it fails."""
    if getattr(_libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    _call("mount", source.encode(), target.encode(), kind.encode(), flags, data.encode())


# ------------------------------------------------------------------------------- the sandbox


def _enter_namespaces(fences: list[str]) -> None:
    """Leaves the host's processes and network, where the kernel allows it (mounts follow later)."""
    uid, gid = os.getuid(), os.getgid()
    wanted = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    try:
        if uid == 0:
            _call("unshare", wanted)
        else:
            _call("unshare", wanted | CLONE_NEWUSER)
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{uid} {uid} 1"),
                ("gid_map", f"{gid} {gid} 1"),
            ):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        fences += ["files", "pids", "network"]
    except OSError:
        # Containers often forbid this. Losing the network fence alone is tried apart.
        try:
            _call("unshare", CLONE_NEWNET | (0 if uid == 0 else CLONE_NEWUSER))
            fences.append("network")
        except OSError:
            pass


def _private_root(box: str, visible: list[str], packages: dict[str, list[str]]) -> None:
    """Changes the root to one that holds Python, jax and the job's own directory, read-only.

    Args:
        box: The job's directory; it becomes ``/box`` and is the only place that can be written.
        visible: Directories that keep their names.
        packages: Directories of which only the named entries are there.
    """
    _call("unshare", CLONE_NEWNS)
    _mount("none", "/", "none", MS_REC | MS_PRIVATE)
    root = os.path.join(box, "root")
    os.mkdir(root)
    _mount("none", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=16m")

    def bind(source: str, read_only: bool = True) -> None:
        target = root + (source if source != box else "/box")
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            open(target, "a").close()
        _mount(source, target, "none", MS_BIND | MS_REC)
        if read_only:
            try:
                _mount("none", target, "none", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)
            except OSError:
                # In a user namespace the flags of the mount below must be kept, and these are
                # files that the job could not write anyway.
                if os.getuid() == 0:
                    raise

    for path in visible:
        bind(path)
    for directory, names in packages.items():
        os.makedirs(root + directory, exist_ok=True)
        _mount("none", root + directory, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
        for name in names:
            bind(os.path.join(directory, name))
    for device in ("null", "zero", "urandom", "random"):
        bind(f"/dev/{device}", read_only=False)
    os.makedirs(root + "/dev/shm", exist_ok=True)
    os.makedirs(root + "/tmp", exist_ok=True)
    bind(box, read_only=False)
    os.makedirs(root + "/proc", exist_ok=True)
    try:
        _mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV)
    except OSError:
        pass  # a container that masks /proc forbids a new one; nothing here needs it
    os.chdir(root)
    os.mkdir(root + "/old")
    _call("pivot_root", root.encode(), (root + "/old").encode())
    os.chdir("/")
    _call("umount2", b"/old", MNT_DETACH)
    os.rmdir("/old")


def _limit(kind: int, value: int) -> None:
    """Sets a limit, but never above what this process is allowed."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _restrict(limits: dict, uid: int | None) -> None:
    """Drops privileges and sets the limits of one process."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, limits["address_space"])
    _limit(resource.RLIMIT_CPU, limits["cpu_seconds"])
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    _limit(resource.RLIMIT_NOFILE, 256)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # Counted per user, so it means something only for a user that nobody else is.
        _limit(resource.RLIMIT_NPROC, limits["processes"])
    # In a user namespace the job would otherwise own its mounts and could undo them.
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _call("capset", header, nothing)
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # A change of user clears this, so it is set here and not before.
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if calls.available():
        calls.refuse()


def _free_uid() -> int | None:
    """A user of its own for this job, if this process may choose one."""
    if os.getuid() != 0:
        return None
    return FIRST_UID + os.getpid() % UIDS


def _readable_by_all(path: str) -> bool:
    """Whether any user can reach a file, judged by the permissions on the way."""
    while True:
        mode = os.stat(path).st_mode
        if not mode & 0o005:
            return False
        parent = os.path.dirname(path)
        if parent == path:
            return True
        path = parent


# --------------------------------------------------------------------------- one job's process


def _job(
    request: dict, module, box: str, uid: int | None, rooted: bool, say: int, ready: int
) -> None:
    """Runs in the sandbox: restricts itself and calls the module's `main`."""
    os.setsid()  # a signal to its own process group must not reach the supervisor
    limits = request["limits"]
    if rooted:
        _private_root(box, request["visible"], request["packages"])
        box = "/box"
    os.chdir(box + "/out")
    log = os.open("../log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open("/dev/null", os.O_RDONLY)
    _restrict(limits, uid)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["HOME"] = os.environ["TMPDIR"] = os.getcwd()
    sys.path[:] = [p for p in sys.path if os.path.isdir(p)]

    def tell(**event) -> None:
        data = memoryview(json.dumps(event).encode() + b"\n")
        while data:
            data = data[os.write(say, data) :]

    with open(box + "/job.json") as file:
        job = json.load(file)
    os.write(ready, b"1")
    os.close(ready)
    module.main(job, box, tell)


def _run_job(*args) -> None:
    """Never returns: ends the process whatever happens, so that no caller's code runs twice."""
    code = 1
    try:
        _job(*args)
        code = 0
    except MemoryError:
        code = 77
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


# --------------------------------------------------------------------------------- supervisor


def _children(pid: int) -> list[int]:
    """All living descendants of a process."""
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    born = [int(x) for x in file.read().split()]
            except OSError:
                continue
            found += born
            todo += born
        if len(found) > 5000:
            break
    return found


def _resident(pid: int) -> int:
    """Resident bytes of one process, shared pages counted by everyone who maps them."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def _directory_bytes(path: str, most_files: int = 10_000) -> int:
    """Bytes of the files below a directory; a directory with too many counts as infinite."""
    total = count = 0
    todo = [path]
    while todo:
        try:
            entries = list(os.scandir(todo.pop()))
        except OSError:
            continue
        for entry in entries:
            count += 1
            if count > most_files:
                return 1 << 62
            if entry.is_dir(follow_symlinks=False):
                todo.append(entry.path)
            else:
                total += entry.stat(follow_symlinks=False).st_size
    return total


def _kill_all(main_pid: int) -> None:
    """Kills a process tree, also one that forks faster than a single pass can see."""
    for _ in range(200):
        left = _children(os.getpid())
        if not left:
            return
        for pid in left:  # stopped processes cannot fork while the rest is being killed
            _signal(pid, signal.SIGSTOP)
        for pid in left:
            _signal(pid, signal.SIGKILL)
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            try:
                pid, _status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                time.sleep(0.002)
    _signal(main_pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _waits(pids: list[int]) -> dict[str, float]:
    """Seconds that each thread of some processes has waited for a processor."""
    found = {}
    for pid in pids[:64]:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                    found[thread] = int(file.read().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            pass  # it has ended, or the system does not say
    return found


def _watch(pid: int, box: str, limits: dict, channel: socket.socket) -> dict:
    """Waits for the job's end and enforces what rlimits cannot: wall time, total memory, disk."""
    last = started = time.monotonic()
    spent, waited = 0.0, {}
    handle = os.pidfd_open(pid)
    peak, killed, pause, next_disk = 0, "", 0.02, time.monotonic() + 0.25
    while True:
        ready, _, _ = select.select([handle, channel], [], [], pause)
        if handle in ready:
            break
        if channel in ready:  # the other side hung up, or asks to stop
            killed = "cancelled"
            break
        family = _children(os.getpid())
        memory = sum(map(_resident, family))
        peak = max(peak, memory)
        pause = min(0.1, pause * 1.3)
        now = time.monotonic()
        # Waiting for a processor is no fault of the job: the limit must not depend on the load.
        before, waited = waited, _waits(family)
        lost = max((t - before.get(k, t) for k, t in waited.items()), default=0.0)
        spent, last = spent + max(0.0, now - last - lost), now
        if max(spent, (now - started) / BACKSTOP) > limits["wall_seconds"]:
            killed = "timeout"
        elif memory > limits["memory_bytes"]:
            killed = "memory"
        elif len(family) > limits["processes"]:
            killed = "processes"
        elif now > next_disk:
            next_disk = now + 0.25
            if _directory_bytes(box + "/out") > limits["disk_bytes"]:
                killed = "disk"
        if killed:
            break
    usage_status = None
    if not killed:
        _, usage_status = os.waitpid(pid, 0)
        if _directory_bytes(box + "/out") > limits["disk_bytes"]:  # written since the last look
            killed = "disk"
    _kill_all(pid)
    report = {"killed": killed, "code": None, "signal": None, "peak_bytes": peak}
    if usage_status is not None:
        if os.WIFSIGNALED(usage_status):
            report["signal"] = os.WTERMSIG(usage_status)
        else:
            report["code"] = os.WEXITSTATUS(usage_status)
    return report


def _supervise(request: dict, module, channel: socket.socket, say: int) -> None:
    """Builds the sandbox for one job, runs it and reports."""
    os.setsid()
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    box = request["box"]
    os.makedirs(box + "/out", exist_ok=True)
    fences = ["limits", "supervisor"]
    _enter_namespaces(fences)
    rooted = "files" in fences
    uid = _free_uid()
    if uid is not None and not rooted and not all(_readable_by_all(p) for p in sys.path if p):
        uid = None  # the interpreter's own files would be out of its reach
    if uid is not None:
        os.chown(box + "/out", uid, uid)
        fences.append("user")
    if calls.available():
        fences.append("calls")
    for name, value in request["env"].items():
        os.environ[name] = value
    started = time.monotonic()
    entered, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        channel.close()
        os.close(entered)
        _run_job(request, module, box, uid, rooted, say, ready)
    os.close(say)
    os.close(ready)
    report = _watch(pid, box, request["limits"], channel)
    report.update(fences=fences, seconds=time.monotonic() - started)
    # Nothing hostile runs before this is written, so the job cannot blame the sandbox.
    report["entered"] = os.read(entered, 1) == b"1" or report["killed"] == "cancelled"
    if os.path.isdir(box + "/root"):
        shutil.rmtree(box + "/root", ignore_errors=True)
    channel.sendall(json.dumps(report).encode() + b"\n")


# ------------------------------------------------------------------------------------- zygote


def _load(path: str):
    """Imports a job module by its file name, in a package that says nothing of its origin.

    While it is imported it finds its neighbours there; later nobody does.
    """
    name = os.path.basename(path).removesuffix(".py")
    package = sys.modules.setdefault("job", types.ModuleType("job"))
    package.__path__ = [os.path.dirname(path)]
    spec = importlib.util.spec_from_file_location(f"job.{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    package.__path__ = []
    return module


calls = _load(os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls.py"))


def main(argv: list[str]) -> None:
    """Loads the job modules, then forks a supervisor for every request until the socket closes."""
    control, work = socket.socket(fileno=int(argv[1])), argv[2]
    sys.path += argv[3].split(":")
    modules = {os.path.basename(p).removesuffix(".py"): _load(p) for p in argv[4:]}
    os.umask(0o022)  # jobs are other users, and find their way through directories made here
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that uses us
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # keeps the pages of jax shared with the forks
    control.sendall(b"ready\n")
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not data:
            break
        request = json.loads(data)
        if os.fork() == 0:
            code = 1
            try:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _supervise(request, modules[request["role"]], socket.socket(fileno=fds[0]), fds[1])
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        for fd in fds:
            os.close(fd)
    # Whoever used us is gone, maybe by a signal that let it clean up nothing.
    try:
        os.waitpid(-1, 0)  # with SIGCHLD ignored: until the last supervisor has ended
    except ChildProcessError:
        pass
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv)
