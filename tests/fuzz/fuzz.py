#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fuzz.py NAME [RUNS | SECONDSs]: build tests/fuzz/NAME.c with libFuzzer and the sanitizers. Run it from a fixed seed
for a fixed number of inputs or a given time (`200s`). The library's files under test are compiled in, so that the
fuzzer sees their branches; through ccache, where that is installed, those that several targets share are compiled once.
Inputs are files in memory, where there is such a file system. Skips (77) without clang and its fuzzer.
"""
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def files_of(folder):
    """Return the C files of @folder and below, as paths from the root."""
    return sorted(os.path.relpath(os.path.join(path, name), ROOT) for path, _, names in os.walk(f"{ROOT}/{folder}")
                  for name in names if name.endswith(".c"))


BASE = files_of("src/base")
MACHINE = BASE + ["src/machine/machine.c", "src/machine/presets.c"]
CONFIG = BASE + files_of("src/graph/config") + ["src/graph/family.c", "src/graph/model.c"]
GRAPH = BASE + ["src/graph/graph.c", "src/graph/graph_json.c"]
TRACE = BASE + files_of("src/alloc/cache") + files_of("src/alloc/pack") + files_of("src/alloc/trace") + [
    "src/device/device.c", "src/device/dry.c"]
SAFETENSORS = BASE + ["src/run/checkpoint/safetensors_read.c"]


def safetensors(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def llmc(magic, version, tokens, kind, vocabulary=None, separator=-1):
    header = struct.pack("<3i", magic, version, len(tokens))
    if vocabulary is not None:  # of lade data
        header += struct.pack("<5i", 0, 0x4544414C, 1, vocabulary, separator) + bytes(32) + b"tokenizer.json"
    header = header.ljust(1024, b"\0")
    return header + struct.pack(f"<{len(tokens)}{kind}", *tokens)


def snapshot(**more):
    """A small memory snapshot, with a block older than its history, one freed in it and one that stays."""
    def event(action, address, size, **also):
        return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 7, "frames": [], **also}

    return {"segments": [{"device": 1, "address": 4096, "total_size": 4096, "stream": 0, "blocks": [
                {"address": 4096, "size": 1024, "requested_size": 1000, "state": "active_allocated"},
                {"size": 3072, "state": "inactive"}]}],
            "device_traces": [[], [event("free_requested", 5120, 512), event("free_completed", 5120, 512),
                                   event("segment_map", 8192, 2048), event("alloc", 8192, 700, stream=9),
                                   event("alloc", 9000, 8), event("free_completed", 8192, 700, stream=9)]], **more}


def graph(**more):
    """A small step of every field, as JSON."""
    return json.dumps({"schema_version": 1, "storages": [
        {"name": "w", "bytes": 64, "given": True, "tier": "host", "align": 256, "class": "layer"},
        {"name": "x", "bytes": 1e3}, {"name": "\u20ac", "bytes": 0}], "ops": [
        {"name": "f", "reads": [0, [0, 8, 16]], "writes": [1], "ns": 1000, "draws": True, "pass": "backward"},
        {"name": "g", "reads": [], "writes": [[1, 0, 4], 2], "updates": [0, [1, 4, 0]], "ns": 7, "scratch_bytes": 99,
         "repeatable": False, "pass": "update", "queue": "host"}], **more}).encode()


ENTRY = {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}
TARGETS = {
    "machine": (MACHINE, [b'{"preset":"h100-80g","name":"a","cores":3,"store":{"bytes":"1GiB"},"duplex":false}']),
    "config": (CONFIG, [
        json.dumps({"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 64,
                    "vocab_size": 256}).encode(),
        json.dumps({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 64, "vocab_size": 256,
                    "rms_norm_eps": 1e-5, "rope_theta": 10000.0}).encode(),
        json.dumps({"model_type": "deepseek_v3", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64,
                    "intermediate_size": 128, "max_position_embeddings": 64, "vocab_size": 256, "n_routed_experts": 8,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
                    "qk_rope_head_dim": 4, "v_head_dim": 8, "mlp_layer_types": ["dense", "sparse"]}).encode(),
        json.dumps({"model_type": "qwen3_moe", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64,
                    "intermediate_size": 128, "max_position_embeddings": 64, "vocab_size": 256, "num_experts": 8,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_key_value_heads": 2,
                    "mlp_only_layers": [0]}).encode()]),
    "safetensors": (SAFETENSORS, [
        safetensors({"a": ENTRY}, b"\0" * 8),
        safetensors({"__metadata__": {"format": "pt"}, "a": ENTRY,
                     "b": {"dtype": "BF16", "shape": [], "data_offsets": [8, 10]}}, b"\0" * 10)]),
    "graph": (GRAPH, [graph(), graph(addresses=False, keep=[1, 0]), graph(storages=[], ops=[{"name": "f", "reads": [], "writes": [], "ns": 0}])]),
    "pickle": (BASE + ["src/alloc/trace/pickle.c"], [
        pickle.dumps({"blocks": [1, -1, 1 << 80, 1.5, None, True, b"b", ("t",), [], {}, "alloc"]}, protocol=protocol)
        for protocol in (2, 4, 5)]),
    "snapshot": (TRACE, [pickle.dumps(snapshot(), protocol=2), pickle.dumps(snapshot(other=None), protocol=4)]),
    "trace": (TRACE, [b"a,0,4,10\nb1,4,8,20\r\nc,2,4,5\n", b"alloc 5 1 100 0\n# note\nalloc 5 2 50 3\nfree 6 1\n"]),
    "data": (BASE + ["src/run/session/data.c", "src/run/session/data_header.c"], [
        b"a text of some thirty characters", llmc(20240520, 1, list(range(20)), "H"),
        llmc(20240801, 7, list(range(20)), "I"), llmc(20240520, 1, list(range(20)), "H", 50, 3)]),
}


def main():
    name = sys.argv[1]
    length = sys.argv[2] if len(sys.argv) > 2 else "20000"
    limit = f"-max_total_time={length[:-1]}" if length.endswith("s") else f"-runs={length}"
    sources, seeds = TARGETS[name]
    clang = shutil.which("clang")
    if not clang:
        print("SKIP: no clang to fuzz with")
        return 77
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lade-fuzz-", dir=memory) as folder:
        binary, corpus = os.path.join(folder, "fuzz"), os.path.join(folder, "corpus")
        os.mkdir(corpus)
        flags = ["-std=gnu17", "-D_GNU_SOURCE", "-gline-tables-only", "-O1", "-fno-sanitize-recover=all", f"-I{ROOT}",
                 f"-I{ROOT}/src", f"-I{ROOT}/include", "-fsanitize=fuzzer-no-link,address,undefined"]
        probe = subprocess.run([clang, "-fsanitize=fuzzer", "-x", "c", "-", "-o", binary], capture_output=True,
                               input=b"int LLVMFuzzerTestOneInput(const char *d, long n) { return 0; }")
        if probe.returncode:
            print("SKIP: clang has no libFuzzer here (Debian and Ubuntu: libclang-rt-dev)")
            return 77
        ccache = ["ccache"] if shutil.which("ccache") else []
        objects = []
        for source in [f"tests/fuzz/{name}.c", *sources]:
            objects.append(os.path.join(folder, source.replace("/", "-") + ".o"))
            subprocess.run([*ccache, clang, *flags, "-c", f"{ROOT}/{source}", "-o", objects[-1]], check=True)
        subprocess.run([clang, "-fsanitize=fuzzer,address,undefined", "-o", binary, *objects,
                        "-ljansson", "-lxxhash", "-lm"], check=True)
        for i, seed in enumerate(seeds):
            with open(os.path.join(corpus, f"seed{i}"), "wb") as file:
                file.write(seed)
        return subprocess.run([binary, limit, "-seed=1", "-max_len=4096", "-rss_limit_mb=1024",
                               "-print_final_stats=1", corpus], cwd=folder,
                              env={**os.environ, "FUZZ_DIR": folder}).returncode != 0


if __name__ == "__main__":
    sys.exit(main())
