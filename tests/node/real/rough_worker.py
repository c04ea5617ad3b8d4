"""A worker that misbehaves on request: speaks the worker's frames, then does what the test asks for."""

import os
import signal
import struct
import subprocess
import sys
import time

import msgpack

PIPE_OUT = os.dup(1)
os.dup2(2, 1)


def send(value):
    body = msgpack.packb(value)
    os.write(PIPE_OUT, struct.pack(">I", len(body)) + body)


def exactly(size):
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            sys.exit(0)
        data += chunk
    return data


def act(request):
    verb, args, number = request["verb"], request["args"], request["id"]
    if verb == "echo":
        print("this print must not reach the pipe", flush=True)
        for step in range(args.get("steps", 0)):
            send({"id": number, "progress": {"step": step, "total": args["steps"]}})
        send({"id": number, "result": {"said": args, "pid": os.getpid(), "wait": os.environ.get("OMP_WAIT_POLICY")}})
    elif verb == "refuse":
        send({"id": number, "error": {"code": "E_BASE_MISMATCH", "exit_code": 7, "message": "other base"}})
    elif verb == "crash":
        print("about to go", file=sys.stderr, flush=True)
        os.kill(os.getpid(), getattr(signal, args["signal"]))
    elif verb == "leave":
        sys.exit(3)
    elif verb == "hoard":
        held = []
        while True:
            held.append(bytearray(os.urandom(1024) * 16 * 1024))
            time.sleep(0.002)
    elif verb == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        send({"id": number, "progress": {"child": child.pid, "own": os.getpid()}})
        time.sleep(600)
    elif verb == "garble":
        os.write(PIPE_OUT, b"\xff\xff\xff\xff not a frame")
        time.sleep(600)
    elif verb == "orphan":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                                 stdout=PIPE_OUT, pass_fds=(PIPE_OUT,))
        send({"id": number, "progress": {"child": child.pid}})
        os.kill(os.getpid(), signal.SIGKILL)


while True:
    act(msgpack.unpackb(exactly(struct.unpack(">I", exactly(4))[0])))
