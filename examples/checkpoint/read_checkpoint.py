#!/usr/bin/env python3
"""Reads a checkpoint into NumPy arrays, without this library: the format, as a program.

usage: read_checkpoint.py CHECKPOINT            prints step, tensors and arrays
       read_checkpoint.py CHECKPOINT --npz FILE writes 'tensor:array' of all arrays

With the package xxhash every checksum is compared; without it, none is. numpy has no bf16: such
values come as fp32, which has them all.
"""

import argparse
import json
import pathlib
import sys

import numpy

try:
    from xxhash import xxh3_64_hexdigest as checksum  # XXH3, 64 bits, no seed, 16 digits
except ImportError:
    checksum = None


def require(holds, what):
    if not holds:
        raise ValueError(what)


def values(entry, data):
    """The elements of an entry of a safetensors file; little-endian."""
    raw = data[slice(*entry["data_offsets"])]
    if entry["dtype"] == "BF16":  # the upper half of an fp32
        return (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    return numpy.frombuffer(raw, {"F32": "<f4", "F64": "<f8", "F16": "<f2",
                                  "U8": "u1", "I32": "<i4", "I64": "<i8"}[entry["dtype"]])


def places(tensor):
    """Where a rank's elements lie in the whole tensor, flat: its boxes one after the other."""
    whole = numpy.arange(int(numpy.prod(tensor["shape"], dtype=int))).reshape(tensor["shape"])
    of_box = [whole[tuple(slice(o, o + e) for o, e in zip(box["offset"], box["extent"]))].ravel()
              for box in tensor["boxes"]]
    return numpy.concatenate(of_box) if of_box else whole.ravel()[:0]


def read_file(path, listed):
    """One rank's file: its own words, its entries and its data."""
    raw = path.read_bytes()
    require(len(raw) == listed["bytes"], f"{path} has another size")
    header, data = raw[:listed["header_bytes"]], raw[listed["header_bytes"]:]  # length included
    require(int.from_bytes(header[:8], "little") == len(header) - 8, f"{path} has another header")
    entries = json.loads(header[8:])
    metadata = entries.pop("__metadata__")
    about, sums = json.loads(metadata["zero"]), metadata["zero.checksums"]
    if checksum:
        require(checksum(header) == listed["header_xxh3"], f"the header of {path} is damaged")
        size = about["piece_bytes"]  # the last piece is shorter
        for piece, at in enumerate(range(0, len(data), size)):
            sound = checksum(data[at:at + size]) == sums[16 * piece:16 * piece + 16]
            require(sound, f"piece {piece} of {path} is damaged")
    return about, entries, data


def read(checkpoint):
    """The manifest, and {tensor: (description, {array: numpy array of the tensor's shape})}."""
    path = pathlib.Path(checkpoint)
    text = (path / "manifest.json").read_text()
    # '{"xxh3":"16 digits","checkpoint":BODY}' and a newline: the sum is of BODY as it stands there.
    sealed = json.loads(text)
    body = text[len('{"xxh3":"","checkpoint":') + 16:-len("}\n")]
    require(not checksum or checksum(body.encode()) == sealed["xxh3"], "the manifest is damaged")
    manifest = sealed["checkpoint"]
    files = [read_file(path / listed["name"], listed) for listed in manifest["files"]]
    tensors = {}
    for listed, (_, entries, data) in zip(manifest["files"], files):
        # A rank's leader is the file that describes its optimizer's tensors.
        described = {t["name"]: t for t in files[listed["leader"]][0]["optimizer"]["tensors"]}
        # Of several optimizers that each rank saved, tensors are called 'optimizer/tensor' here.
        within = listed["optimizer"] + "/" if "optimizer" in listed else ""
        for tensor in described.values():
            tensors.setdefault(within + tensor["name"], (tensor, {}))
        for name, entry in entries.items():
            if name == "rank_blob":
                continue
            tensor, array, first = name.rsplit(":", 2)  # a tensor's name may have colons
            about, arrays = tensors[within + tensor]
            run = values(entry, data)
            whole = arrays.setdefault(array, numpy.empty(about["shape"], run.dtype))
            whole.reshape(-1)[places(described[tensor])[int(first):int(first) + len(run)]] = run
    for name, (about, arrays) in tensors.items():
        if about["tied_to"]:
            arrays.update(tensors[name.removesuffix(about["name"]) + about["tied_to"]][1])
    return manifest, tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--npz", metavar="FILE")
    options = parser.parse_args()
    manifest, tensors = read(options.checkpoint)
    if options.npz:
        numpy.savez(options.npz, **{f"{tensor}:{array}": held for tensor, (_, arrays) in tensors.items()
                                    for array, held in arrays.items()})
        return
    ranks = len({(listed["leader"], listed["rank"]) for listed in manifest["files"]
                 if listed.get("optimizer") == manifest["files"][0].get("optimizer")})
    print(f"step {manifest['step']}, {ranks} rank{'s' * (ranks != 1)}" + ("" if checksum else ", sums not compared"))
    for tensor, (about, arrays) in tensors.items():
        none = "left out" if about.get("left_out") else "no elements"
        print(f"{tensor} {about['shape']}, {about['steps']} updates: {', '.join(sorted(arrays)) or none}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"read_checkpoint: {error}")
