# SPDX-License-Identifier: Apache-2.0
"""What the reports of bench/ have in common: the line that names the machine, and where the text goes."""
import os


def machine_name():
    """The processor, its cores that may be used, and the load at this moment."""
    with open("/proc/cpuinfo") as info:
        name = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown")
    return f"{name}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.0f} at the start"


def publish(lines, path):
    """Prints the lines, and writes them to the file if one was named."""
    text = "\n".join(lines) + "\n"
    print(text)
    if path:
        with open(path, "w") as report:
            report.write(text)
