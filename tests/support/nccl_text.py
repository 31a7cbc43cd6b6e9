"""Writes NCCL topology XML from a machine that the test made up."""

from __future__ import annotations


def gpu(dev: int, links: dict[str, int] | None = None, *, sm: int = 70, tclass: str = "0x030200") -> str:
    """A gpu element; `links` maps the bus id of the other end to a count."""
    inner = "".join(f'<nvlink target="{t}" count="{n}" tclass="{tclass}"/>\n' for t, n in (links or {}).items())
    return f'<gpu dev="{dev}" sm="{sm}" rank="{dev}" gdr="1">\n{inner}</gpu>'


def amd(dev: int, links: dict[str, int], gcn: str) -> str:
    inner = "".join(f'<xgmi target="{t}" count="{n}" tclass="0x038000"/>\n' for t, n in links.items())
    return f'<gpu dev="{dev}" sm="0" gcn="{gcn}" rank="{dev}" gdr="1">\n{inner}</gpu>'


def pci(bus: str, inner: str = "", *, cls: str = "0x030200", speed: str = "8 GT/s", width: str = "16") -> str:
    return f'<pci busid="{bus}" class="{cls}" link_speed="{speed}" link_width="{width}">\n{inner}\n</pci>'


def bridge(bus: str, *below: str, speed: str = "8 GT/s", width: str = "16") -> str:
    return pci(bus, "\n".join(below), cls="0x060400", speed=speed, width=width)


def nic(name: str, speed: int = 100000) -> str:
    return f'<nic>\n<net name="{name}" dev="0" speed="{speed}" port="1" guid="0x1" maxconn="131072" gdr="1"/>\n</nic>'


def cpu(numa: int, *below: str, host: str = "") -> str:
    mark = f' host_hash="{host}"' if host else ""
    inner = "\n".join(below)
    return f'<cpu{mark} numaid="{numa}" affinity="ffff" arch="x86_64" vendor="GenuineIntel">\n{inner}\n</cpu>'


def system(*cpus: str) -> str:
    return '<system version="1">\n' + "\n".join(cpus) + "\n</system>\n"


def bus(number: int) -> str:
    return f"0000:{number + 16:02x}:00.0"


def mesh(counts: dict[tuple[int, int], int], gpus: int, *, sm: int = 70) -> str:
    """Direct links by pair; half of the GPUs below each of two CPUs, two on each PCIe switch with a NIC."""
    links: list[dict[str, int]] = [{} for _ in range(gpus)]
    for (a, b), n in counts.items():
        links[a][bus(b)] = n
        links[b][bus(a)] = n
    sides: list[list[str]] = [[], []]
    for i in range(0, gpus, 2):
        members = [pci(bus(j), gpu(j, links[j], sm=sm)) for j in range(i, min(i + 2, gpus))]
        port = pci(f"0000:{i + 128:02x}:00.0", nic(f"mlx5_{i // 2}"), cls="0x020700")
        sides[i >= gpus // 2].append(bridge(f"0000:{i + 64:02x}:00.0", *members, port))
    return system(cpu(0, *sides[0]), cpu(1, *sides[1]))
