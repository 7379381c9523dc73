#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A snapshot of the cache opens in PyTorch's readers: Python's pickle, _memory_viz.py, and the page memory_viz.

The page's reader supports few opcodes and integers of at most 8 bytes, and passes a batch of a list's items as
arguments of one call; its state view plays the history backwards from the blocks. All of that is checked here without
torch: opcodes, every field that either reader uses, blocks that tile their segments, sums that are the cache's own, and
the history played backwards to its begin.

Usage: snapshot.py CACHE-SNAPSHOT
"""
import json
import os
import pickle
import pickletools
import subprocess
import sys
import tempfile

OPCODES = {"PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "BINUNICODE", "BININT", "BININT1",
           "BININT2", "LONG1", "BINFLOAT", "NEWTRUE", "NEWFALSE", "TUPLE", "STOP"}
MAX_ARGUMENTS = 5000  # of one call in a browser, with a margin

# Fields that _memory_viz.py and the page read, and further ones of torch.cuda.memory._snapshot().
SEGMENT = {"device": int, "address": int, "total_size": int, "allocated_size": int, "active_size": int,
           "requested_size": int, "stream": int, "segment_type": str, "segment_pool_id": tuple,
           "is_expandable": bool, "frames": list, "blocks": list}
BLOCK = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
FRAME = {"name": str, "filename": str, "line": int}
EVENT = {"action": str, "size": int, "stream": int, "time_us": int, "frames": list}
STATES = {"active_allocated", "active_pending_free", "inactive"}
ACTIONS = {"alloc", "free_requested", "free_completed", "segment_map", "segment_unmap", "oom"}


def must(is_true, what):
    if not is_true:
        sys.exit(f"snapshot.py: {what}")


class DataOnly(pickle.Unpickler):
    def find_class(self, module, name):
        sys.exit(f"snapshot.py: the snapshot names a class, {module}.{name}")


def opcodes_check(data):
    before = None
    for opcode, argument, position in pickletools.genops(data):
        must(opcode.name in OPCODES, f"opcode {opcode.name} is unknown to the page")
        must(opcode.name != "PROTO" or argument == 4, f"protocol {argument}")
        must(before is None or position - before <= 10, "an integer of more than 8 bytes")
        before = position if opcode.name == "LONG1" else None
    lengths = batch_lengths(data)
    must(max(lengths) <= MAX_ARGUMENTS, f"{max(lengths)} items at once")


def batch_lengths(data):
    """Count the items between each MARK and its APPENDS, as the page's reader stacks them."""
    stack, marks, lengths = 0, [], []
    for opcode, _, _ in pickletools.genops(data):
        if opcode.name == "MARK":
            marks.append(stack)
        elif opcode.name in ("APPENDS", "SETITEMS"):
            lengths.append(stack - marks[-1])
            stack = marks.pop()
        elif opcode.name == "TUPLE":
            stack = marks.pop() + 1
        elif opcode.name not in ("PROTO", "STOP"):
            stack += 1
    return lengths


def fields_check(item, fields, what):
    for name, kind in fields.items():
        must(type(item.get(name)) is kind, f"{what} has {name} = {item.get(name)!r}, not of {kind.__name__}")
    for frame in item.get("frames", []):
        for name, kind in FRAME.items():
            must(type(frame.get(name)) is kind, f"a frame of {what} has {name} = {frame.get(name)!r}")


def segments_check(snapshot, stats):
    sums = dict.fromkeys(("total_size", "allocated_size", "active_size", "requested_size"), 0)
    states = set()
    for segment in snapshot["segments"]:
        fields_check(segment, SEGMENT, "a segment")
        at = segment["address"]
        sizes = dict.fromkeys(STATES, 0)
        for block in segment["blocks"]:
            fields_check(block, BLOCK, "a block")
            must(block["address"] == at, "blocks do not tile a segment")
            must(0 < block["requested_size"] <= block["size"], "a block is smaller than what was asked for")
            must(bool(block["frames"]) == (block["state"] != "inactive"), "an owner is missing, or one too many")
            sizes[block["state"]] += block["size"]
            at += block["size"]
            states.add(block["state"])
        must(at == segment["address"] + segment["total_size"], "a segment is not full of blocks")
        must(sizes["active_allocated"] == segment["allocated_size"], "a segment's allocated_size is wrong")
        must(segment["total_size"] - sizes["inactive"] == segment["active_size"], "a segment's active_size is wrong")
        for name in sums:
            sums[name] += segment[name]
    must(sums == {"total_size": stats["reserved"], "allocated_size": stats["allocated"],
                  "active_size": stats["active"], "requested_size": stats["requested"]}, f"{sums}, not {stats}")
    return states


def play_backwards(snapshot, chunk):
    """Undo event after event, as the page's state view does; only effects that exist may be undone."""
    live, pending, pages = {}, {}, set()
    for segment in snapshot["segments"]:
        pages |= set(range(segment["address"], segment["address"] + segment["total_size"], chunk))
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                live[block["address"]] = block["size"]
            elif block["state"] == "active_pending_free":
                pending[block["address"]] = block["size"]
    for event in reversed(snapshot["device_traces"][0]):
        fields_check(event, EVENT, "an event")
        action, address, size = event["action"], event.get("addr"), event["size"]
        must(action in ACTIONS, f"action {action}")
        if action == "oom":
            must(type(event.get("device_free")) is int, "an oom without device_free")
        elif action == "free_completed":
            must(address not in live and address not in pending, "completed a free of a block that lives")
            pending[address] = size
        elif action == "free_requested":
            must(pending.pop(address, None) == size, "asked to free what is not pending")
            live[address] = size
        elif action == "alloc":
            must(live.pop(address, None) == size, "allocated what does not live")
        elif action == "segment_map":
            must(address in pages and size == chunk, "mapped what is not mapped")
            pages.remove(address)
        else:
            must(address not in pages and size == chunk, "unmapped what is mapped")
            pages.add(address)
        for block, block_size in list(live.items())[:3]:
            first = block - block % chunk
            must(all(page in pages for page in range(first, block + block_size, chunk)), "a block without memory")
    return live, pending, pages


def snapshot_check(program, kind, folder):
    path = os.path.join(folder, kind)
    stats = json.loads(subprocess.run([program, path, kind], capture_output=True, text=True, check=True).stdout)
    with open(path, "rb") as file:
        data = file.read()
    opcodes_check(data)
    with open(path, "rb") as file:
        snapshot = DataOnly(file).load()
    must(set(snapshot) == {"segments", "device_traces", "allocator_settings", "external_annotations"},
         f"keys {sorted(snapshot)}")
    states = segments_check(snapshot, stats)
    must(states == (STATES if kind != "dry" else STATES - {"active_pending_free"}), f"states {states}")
    events = snapshot["device_traces"][0]
    actions = {event["action"] for event in events}
    must(actions == ACTIONS, f"actions {actions}")
    must(sum(event["action"] == "oom" for event in events) == stats["ooms"], "refusals are missing")
    settings = snapshot["allocator_settings"]
    must(settings["lade_limit_bytes"] == stats["limit"] and settings["expandable_segments"] is True, f"{settings}")
    must({segment["segment_pool_id"] for segment in snapshot["segments"]} == {(0, 0), (1, 0)}, "pools are missing")
    live, pending, pages = play_backwards(snapshot, settings["lade_chunk_bytes"])
    if kind != "sanitize":  # the ring lost no event: the beginning is an empty cache
        must(not live and not pending and not pages, "the history does not begin with nothing")
    names = {frame["filename"] for event in events for frame in event["frames"]}
    must({"model.py", "unknown", 'optimizer "a\\b" ?.c', "no line"} <= names, f"places {names}")
    must({frame["name"] for event in events for frame in event["frames"]} == {"untagged", "activations"}, "tags")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("host", "dry", "sanitize"):
            snapshot_check(os.path.abspath(sys.argv[1]), kind, folder)


if __name__ == "__main__":
    main()
