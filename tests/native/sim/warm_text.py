"""The warm process of warm_texts.py: a program that has imported a module, has one thread, and forks for each order."""

import importlib
import socket
import sys
from pathlib import Path
from types import ModuleType

sys.path.append(str(Path(__file__).parents[2] / "e2e"))

from warm_process import become, serve

if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    order = serve(socket.socket(fileno=int(sys.argv[1])))
    become(order, None)
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(order.words[1], "<string>", "exec"), vars(main))
