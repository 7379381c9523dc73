# SPDX-License-Identifier: Apache-2.0
"""Machine code of the CUDA kernels: compile a file by nvcc and ptxas, disassemble it by nvdisasm, read the listing.

bench/sass.py makes its table from this; tests/on_fakes/machine_code.py checks PTX and spills with the same compilation."""
import glob
import os
import re
import subprocess
from dataclasses import dataclass, field

FLAGS = ['-std=c++17', '-fmad=false', '-include', 'kernels/cuda/gpu.h', '-I', '.', '-I', 'src', '-I', 'include']


@dataclass
class Resources:
    """
    Needs of one function: registers of a thread, bytes of static shared memory, bytes of spill stores, threads. The
    assembler ptxas serializes products of warpgroups if registers are too few, and says so.
    """
    registers: int
    shared_bytes: int
    spill_bytes: int
    threads: int
    is_serialized: bool = False


@dataclass
class Instruction:
    """One line of a listing. @name has its modifiers, "LDG.E.128"; @operands is the text after it."""
    address: int
    name: str
    operands: str
    is_conditional: bool

    @property
    def base(self):
        return self.name.split('.')[0]


@dataclass
class Function:
    """Return the instructions in their order, and the index of the instruction after each label."""
    name: str
    code: list = field(default_factory=list)
    labels: dict = field(default_factory=dict)


def kernel_compile(nvcc, root, name, arch, folder):
    """Return the PTX of each function of kernels/cuda/*/@name.cu, the Resources of each, and the path of the cubin."""
    ptx, cubin = (os.path.join(folder, name + end) for end in ('.ptx', '.cubin'))
    source, = glob.glob(f'kernels/cuda/*/{name}.cu', root_dir=root)
    subprocess.run([nvcc, '-ptx', f'-arch={arch}', *FLAGS, '-o', ptx, source], cwd=root, check=True)
    ptxas = os.path.join(os.path.dirname(os.path.realpath(nvcc)), 'ptxas')
    told = subprocess.run([ptxas, '-v', f'-arch={arch}', ptx, '-o', cubin], check=True, capture_output=True,
                          text=True).stderr
    with open(ptx, encoding='utf-8') as file:
        parts = re.split(r'\.entry (\w+)\(', file.read())
    bodies = dict(zip(parts[1::2], parts[2::2]))
    return bodies, resources_read(told, bodies), cubin


def resources_read(told, bodies):
    """Read the Resources of each function from ptxas -v's text and the PTX of its body."""
    found = {}
    serialized = set(re.findall(r"wgmma\.mma_async instructions are serialized .*?'(\w+)'", told))
    for name, text in re.findall(r"entry function '(\w+)'(.*?)(?=Compiling entry|\Z)", told, re.S):
        def number(pattern, text=text):
            match = re.search(pattern, text)
            return int(match.group(1)) if match else 0
        threads = re.search(r'\.maxntid (\d+)', bodies.get(name, ''))
        found[name] = Resources(number(r'Used (\d+) registers'), number(r'(\d+) bytes smem'),
                                number(r'(\d+) bytes spill stores'), int(threads.group(1)) if threads else 1024,
                                name in serialized)
    return found


def disassemble(nvdisasm, cubin):
    return subprocess.run([nvdisasm, '--print-code', cubin], check=True, capture_output=True, text=True).stdout


LINE = re.compile(r'\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+ )?\s*([A-Z][\w.]*)\s*([^;]*);')


def listing_read(text):
    """Return the Function of each section .text.NAME of a listing, by name."""
    functions, function = {}, None
    for line in text.splitlines():
        if section := re.match(r'\s*\.section\s+\.text\.([\w$]+)', line):
            function = functions.setdefault(section.group(1), Function(section.group(1)))
        elif function and (label := re.match(r'(\.L\w+):', line)):
            function.labels[label.group(1)] = len(function.code)
        elif function and (match := LINE.match(line)):
            address, predicate, name, operands = match.groups()
            function.code.append(Instruction(int(address, 16), name, operands.strip(), bool(predicate)))
    return functions


def target_find(function, at):
    """Return the index that the branch at index @at goes to; None if it is no branch to a label."""
    instruction = function.code[at]
    label = re.search(r'`\((\.L\w+)\)', instruction.operands)
    return function.labels.get(label.group(1)) if instruction.base == 'BRA' and label else None


def loops_find(function):
    """Return the loops as (first, last) indices. A branch to itself, which pads a function's end, is none."""
    targets = [(target_find(function, at), at) for at in range(len(function.code))]
    return [(to, at) for to, at in targets if to is not None and to < at]


def fast_path(function, first, last, is_work):
    """
    Return the indices in [first, last] without the regions that conditional forward branches skip and that hold no work
    by @is_work: slow cases of divisions, masks of diagonal tiles, dropout that is off.
    """
    kept, at = [], first
    while at <= last:
        kept.append(at)
        to = target_find(function, at)
        is_skip = to is not None and at < to <= last and function.code[at].is_conditional
        at = to if is_skip and not any(is_work(function.code[i]) for i in range(at + 1, to)) else at + 1
    return kept
