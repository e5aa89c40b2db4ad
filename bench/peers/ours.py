# SPDX-License-Identifier: Apache-2.0
"""The CPU backend of DeepInfer through build/bench/libpeer_shapes.so (peer_shapes.cc), with the references of the machine."""
import ctypes
import json


class Ours:
    def __init__(self, library: str, threads: int, isa: str = ""):
        self.lib = ctypes.CDLL(library)
        signatures = {
            "peer_open": (ctypes.c_void_p, [ctypes.c_int, ctypes.c_char_p]),
            "peer_isa": (ctypes.c_char_p, []),
            "peer_host": (ctypes.c_char_p, []),
            "peer_sweep": (ctypes.c_double, [ctypes.c_void_p]),
            "peer_peak": (ctypes.c_double, [ctypes.c_void_p]),
            "peer_switches": (ctypes.c_int64, []),
            "peer_product": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64]),
            "peer_moe": (None, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]),
            "peer_routing": (ctypes.POINTER(ctypes.c_int32), [ctypes.c_void_p, ctypes.c_int]),
            "peer_bytes": (ctypes.c_double, [ctypes.c_void_p, ctypes.c_int]),
            "peer_run": (ctypes.c_double, [ctypes.c_void_p, ctypes.c_int]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        self.handle = self.lib.peer_open(threads, isa.encode())
        if not self.handle:
            raise SystemExit(f"error: --cpu-isa {isa} is unknown or not available on this machine")
        self.isa = self.lib.peer_isa().decode()
        self.host = json.loads(self.lib.peer_host())
        self.is_moe = 0

    def sweep(self) -> float:
        return self.lib.peer_sweep(self.handle)

    def peak(self) -> float:
        return self.lib.peer_peak(self.handle)

    def switches(self) -> int:
        return self.lib.peer_switches()

    def product(self, form: str, rows: int, cols: int, m: int) -> int:
        """Sets the shape; returns how many products one run makes."""
        self.is_moe = 0
        return self.lib.peer_product(self.handle, form.encode(), rows, cols, m)

    def moe(self, m: int, experts: int) -> None:
        self.is_moe = 1
        self.lib.peer_moe(self.handle, m, experts)

    def routing(self, i: int, m: int) -> list:
        pointer = self.lib.peer_routing(self.handle, i)
        return [pointer[k] for k in range(m * 6)]

    def bytes(self) -> float:
        return self.lib.peer_bytes(self.handle, self.is_moe)

    def run(self) -> float:
        """Seconds."""
        return self.lib.peer_run(self.handle, self.is_moe)
