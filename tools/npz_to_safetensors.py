#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""npz_to_safetensors.py OUT IN...: arrays of .npz and .npy files as one safetensors file, byte by byte, without numpy. Arrays of
an .npy file are named after it. uint8 stays U8, uint16 becomes U16, float32 F32, int64 I64."""

import ast
import json
import os
import struct
import sys
import zipfile

DTYPES = {"|u1": "U8", "<u2": "U16", "<f4": "F32", "<i8": "I64", "<i4": "I32"}


def read_npy(data):
    assert data[:6] == b"\x93NUMPY", "not an .npy file"
    if data[6] == 1:
        (length,), start = struct.unpack("<H", data[8:10]), 10
    else:
        (length,), start = struct.unpack("<I", data[8:12]), 12
    header = ast.literal_eval(data[start : start + length].decode("latin-1"))
    assert not header["fortran_order"] or len(header["shape"]) < 2, "Fortran order"
    return DTYPES[header["descr"]], list(header["shape"]), data[start + length :]


def main():
    out, inputs = sys.argv[1], sys.argv[2:]
    arrays = {}
    for path in inputs:
        if path.endswith(".npy"):
            with open(path, "rb") as file:
                arrays[os.path.basename(path)[:-4]] = read_npy(file.read())
            continue
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                arrays[name.removesuffix(".npy")] = read_npy(archive.read(name))
    header, offset = {}, 0
    for name, (dtype, shape, data) in arrays.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(out, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in arrays.values():
            file.write(data)


if __name__ == "__main__":
    main()
