"""`holding.py THING FOLDER [GIVEN]` holds one thing and waits: a process that CRIU can save, or cannot.

It prints, as JSON, the number of the descriptor that holds the thing, or why the kernel does not give it. Each function
below holds the thing that its name says, and returns the descriptor, -1 for a thing without one.
"""

import ctypes
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # an isolated interpreter leaves its script's folder out

import holding_sockets
from holding_base import NEW_IPC, call, folder, given, held, keep, libc, mapped, report


def nothing():
    return -1


def plain_devices():
    for name in ("zero", "full", "random", "urandom"):
        held(f"/dev/{name}", os.O_RDONLY)
    return held("/dev/null")


def mapped_zero():
    return mapped(os.open("/dev/zero", os.O_RDWR), flags=mmap.MAP_PRIVATE)


def device():
    return held("/dev/fuse")


def device_as_path():
    return held("/dev/fuse", os.O_PATH)


def block_device():
    return held("/dev/loop0", os.O_RDONLY)


def mapped_device():
    return mapped(os.open("/dev/loop0", os.O_RDONLY), flags=mmap.MAP_PRIVATE)


def simulated_device():
    return held(f"{folder}/device", os.O_RDWR | os.O_CREAT)


def pair_of_a_terminal():
    master, slave = os.openpty()
    keep(master)
    return keep(slave)


def slave_of_a_terminal():
    return held(given)


def two_terminals():
    """Holds the slaves of two terminals; `given` names both."""
    return list(map(held, given.split(",")))[-1]


def current_terminal():
    slave = os.open(given, os.O_RDWR)  # without O_NOCTTY: it becomes the controlling terminal
    here = held("/dev/tty")
    os.close(slave)
    return here


def terminal_of_a_child():
    master, slave = os.openpty()
    become = "import fcntl, os; fcntl.ioctl(0, 0x540E, 0); os.execvp('sleep', ['sleep', '1000'])"
    keep(subprocess.Popen([sys.executable, "-I", "-S", "-c", become], stdin=slave, start_new_session=True).pid)
    os.close(slave)
    return keep(master)


def virtual_terminal():
    return held("/dev/tty20")


def ring():
    return keep(call(libc.syscall, 425, 4, ctypes.create_string_buffer(120)))


def mapped_ring():
    fd = ring()
    return mapped(fd, mmap.PROT_READ | mmap.PROT_WRITE)


def fault_handler():
    return keep(call(libc.syscall, 323, os.O_CLOEXEC))


def counter():
    attributes = struct.pack("=IIQQQQ", 1, 64, 0, 0, 0, 0).ljust(64, b"\0")
    return keep(call(libc.syscall, 298, ctypes.create_string_buffer(attributes, 64), 0, -1, -1, 0))


def mapped_counter():
    return mapped(counter(), mmap.PROT_READ | mmap.PROT_WRITE)


def secret():
    return keep(call(libc.syscall, 447, 0))


def mapped_secret():
    fd = secret()
    os.ftruncate(fd, 4096)
    return mapped(fd)


def rules():
    return keep(call(libc.syscall, 444, ctypes.create_string_buffer(struct.pack("=Q", 1), 8), 8, 0))


def pidfd_outside():
    return keep(os.pidfd_open(os.getppid()))


def pidfd_of_itself():
    return keep(os.pidfd_open(os.getpid()))


def pidfd_of_an_ended_child():
    child = subprocess.Popen(["true"])
    fd = keep(os.pidfd_open(child.pid))
    child.wait()
    return fd


def message_queue():
    name = f"/gcr-{os.getpid()}".encode()
    fd = keep(call(libc.mq_open, name, os.O_RDWR | os.O_CREAT, 0o600, None))
    libc.mq_unlink(name)
    return fd


def plain_descriptors():
    keep(os.eventfd(0))
    keep(select.epoll())
    keep(call(libc.timerfd_create, 1, 0))
    keep(call(libc.inotify_init))
    keep(os.memfd_create("held"))
    keep(os.pipe())
    held(folder, os.O_RDONLY)
    mask = ctypes.create_string_buffer(128)
    return keep(call(libc.signalfd, -1, mask, 0))


def deleted_file():
    fd = held(f"{folder}/deleted", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"x")
    Path(f"{folder}/deleted").unlink()
    return fd


def fifo():
    os.mkfifo(f"{folder}/fifo")
    return held(f"{folder}/fifo")


def lock(take):
    fd = held(f"{folder}/lock", os.O_RDWR | os.O_CREAT)
    take(fd)
    return fd


def file_lock():
    return lock(lambda fd: fcntl.flock(fd, fcntl.LOCK_EX))


def record_lock():
    return lock(lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX))


def lock_of_an_open_file():
    return lock(lambda fd: fcntl.fcntl(fd, 37, struct.pack("=hh4xqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)))


def lease():
    fd = held(f"{folder}/lock", os.O_RDONLY | os.O_CREAT)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    return fd


def segment():
    number = call(libc.shmget, 0, 4096, 0o1600)
    call(libc.shmat, number, None, 0)
    libc.shmctl(number, 0, None)  # removed with its last user
    return -1


def segment_of_its_own():
    call(libc.unshare, NEW_IPC)
    return segment()


def thread():
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    return -1


def child():
    keep(subprocess.Popen(["sleep", "1000"]).pid)
    return -1


def stopped_child():
    started = subprocess.Popen(["sleep", "1000"])
    started.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, started.pid, os.WSTOPPED | os.WNOWAIT)
    keep(started.pid)
    return -1


def zombie():
    started = subprocess.Popen(["true"])
    os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
    keep(started)
    return -1


def traced_child():
    pid = os.fork()
    if pid == 0:
        os.close(report)
        libc.ptrace(0, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        signal.pause()
    os.waitpid(pid, 0)
    call(libc.ptrace, 7, pid, 0, 0)
    return -1


def restless():
    def change():
        while True:
            fds = [os.open(folder, os.O_RDONLY), *os.pipe(), os.eventfd(0)]
            pair = socket.socketpair()
            with mmap.mmap(-1, 4096):
                subprocess.run(["true"], check=True)
            for end in (*pair, *map(os.fdopen, fds[1:])):
                end.close()
            os.close(fds[0])

    threading.Thread(target=change, daemon=True).start()
    return -1


def say(**found):
    os.write(report, json.dumps({"pid": os.getpid(), **found}).encode())
    os.close(report)


def first_thread_gone():
    def last():
        while Path(f"/proc/self/task/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.005)
        say(fd=-1)
        time.sleep(1000)

    threading.Thread(target=last).start()
    libc.syscall(60, 0)  # exit, of this thread alone


def main():
    try:
        fd = {**vars(holding_sockets), **globals()}[sys.argv[1]]()
    except OSError as error:
        say(cannot=str(error))
        return
    say(fd=fd)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
