#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fuzz.py NAME [RUNS]: build tests/fuzz/NAME.c with libFuzzer and the sanitizers, and run it for a
fixed number of inputs from a fixed seed. The library's files under test are compiled in, so that
the fuzzer sees their branches. Skips (77) without clang and its fuzzer.
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASE = ["src/base/base.c", "src/base/faults.c", "src/base/file.c"]
MACHINE = BASE + ["src/machine/machine.c", "src/machine/presets.c"]
CONFIG = BASE + ["src/graph/config.c", "src/graph/model.c", "src/graph/presets.c"]
SAFETENSORS = BASE + ["src/run/safetensors_read.c"]


def safetensors(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def llmc(magic, version, tokens, kind):
    header = struct.pack("<3i", magic, version, len(tokens)).ljust(1024, b"\0")
    return header + struct.pack(f"<{len(tokens)}{kind}", *tokens)


ENTRY = {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}
TARGETS = {
    "machine": (MACHINE, [b'{"preset":"h100-80g","name":"a","cores":3,"store":{"bytes":"1GiB"},"duplex":false}']),
    "config": (CONFIG, [
        json.dumps({"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 64,
                    "vocab_size": 256}).encode(),
        json.dumps({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 64, "vocab_size": 256,
                    "rms_norm_eps": 1e-5, "rope_theta": 10000.0}).encode()]),
    "safetensors": (SAFETENSORS, [
        safetensors({"a": ENTRY}, b"\0" * 8),
        safetensors({"__metadata__": {"format": "pt"}, "a": ENTRY,
                     "b": {"dtype": "BF16", "shape": [], "data_offsets": [8, 10]}}, b"\0" * 10)]),
    "data": (BASE + ["src/run/data.c"], [
        b"a text of some thirty characters", llmc(20240520, 1, list(range(20)), "H"),
        llmc(20240801, 7, list(range(20)), "I")]),
}


def main():
    name = sys.argv[1]
    runs = sys.argv[2] if len(sys.argv) > 2 else "20000"
    sources, seeds = TARGETS[name]
    clang = shutil.which("clang")
    if not clang:
        print("SKIP: no clang to fuzz with")
        return 77
    with tempfile.TemporaryDirectory(prefix="lade-fuzz-") as folder:
        binary, corpus = os.path.join(folder, "fuzz"), os.path.join(folder, "corpus")
        os.mkdir(corpus)
        flags = ["-std=gnu17", "-D_GNU_SOURCE", "-g", "-O1", "-fno-sanitize-recover=all", f"-I{ROOT}",
                 f"-I{ROOT}/src", f"-I{ROOT}/include"]
        probe = subprocess.run([clang, "-fsanitize=fuzzer", "-x", "c", "-", "-o", binary], capture_output=True,
                               input=b"int LLVMFuzzerTestOneInput(const char *d, long n) { return 0; }")
        if probe.returncode:
            print("SKIP: clang has no libFuzzer here (Debian and Ubuntu: libclang-rt-dev)")
            return 77
        subprocess.run([clang, *flags, "-fsanitize=fuzzer,address,undefined", "-o", binary,
                        f"{ROOT}/tests/fuzz/{name}.c", *[f"{ROOT}/{source}" for source in sources],
                        "-ljansson", "-lxxhash", "-lm"], check=True)
        for i, seed in enumerate(seeds):
            with open(os.path.join(corpus, f"seed{i}"), "wb") as file:
                file.write(seed)
        return subprocess.run([binary, f"-runs={runs}", "-seed=1", "-max_len=4096", "-rss_limit_mb=1024",
                               "-print_final_stats=1", corpus], cwd=folder,
                              env={**os.environ, "FUZZ_DIR": folder}).returncode != 0


if __name__ == "__main__":
    sys.exit(main())
