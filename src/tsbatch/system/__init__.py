"""This machine: processes, ports, memory, GPUs, signals, atomic files, the terminal."""
