"""Kernels cut calls into shares without dividing 64 bits: their cut is the host's, and the interpreter's."""

from __future__ import annotations

import random
import subprocess
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from collc.build.toolchain import find_cxx
from collc.ir.interpret import cut_share
from collc.ir.nodes import Program, Share
from collc.resources import resource_dir

SOURCE = """
#include <cstdio>
#include <random>
#include "collc/step_program.h"
using namespace collc;

int main() {
  std::mt19937_64 random(7);
  // Numbers around powers of two, and around multiples, are where a quotient is off by one.
  for (int i = 0; i < 2000000; ++i) {
    const uint32_t by = std::max<uint64_t>(1, random() >> (33 + random() % 31));
    uint64_t n = random() >> random() % 64;
    if (i % 3 == 0) n = n / by * by - i % 2;
    if (i % 7 == 0) n = ~uint64_t{0} - random() % 5;
    const Inverted inverse{by, ~uint64_t{0} / by};
    if (quotient_of(n, inverse) != n / by) return std::printf("%llu / %u\\n", (unsigned long long)n, by), 1;
  }
  for (uint32_t by = 1; by < 1 << 16; ++by)
    if (inverted(by).inverse != ~uint64_t{0} / by) return std::printf("1 / %u\\n", by), 1;
  unsigned long long count;
  unsigned lo, hi, den, part, weights, element, chunk;
  while (std::scanf("%u %u %u %u %u %llu %u %u", &lo, &hi, &den, &part, &weights, &count, &element, &chunk) == 8) {
    const Share share{lo, hi, den, 0, static_cast<uint16_t>(part)};
    const Inverted of_den{den, ~uint64_t{0} / den}, of_most{chunk / 16, ~uint64_t{0} / (chunk / 16)};
    for (const ShareRange &cut : {cut_share(share, count, element, chunk, weights),
                                  cut_share(share, of_den, of_most, count, element, weights)})
      std::printf("%llu %llu %llu %llu\\n", (unsigned long long)cut.begin, (unsigned long long)cut.end,
                  (unsigned long long)cut.chunk, (unsigned long long)cut.nchunks);
  }
}
"""


def test_the_kernels_cut_is_that_of_the_host_and_the_interpreter(tmp_path: Path) -> None:
    random.seed(5)
    rows, expected = [], []
    for _ in range(2000):
        den = random.choice((1, 2, 3, 7, 64, 997, (1 << 30) - 1))
        lo = random.randrange(den)
        hi = random.randint(lo + 1, den)
        weights = random.choice((None, None, (200, 55, 0), (3, 2, 250)))
        element, chunk = random.choice((1, 2, 4, 8)), 16 * random.randint(1, 1 << random.randint(0, 18))
        count = random.getrandbits(random.randint(0, 45))
        part = random.randrange(2) if weights else 0
        share = Share(block=0, lo=Fraction(lo, den), hi=Fraction(hi, den), part=part)
        # All that a cut depends on.
        program = cast(Program, SimpleNamespace(shares=(share,), chunk_bytes=chunk, weights=()))
        packed = sum(w << 8 * i for i, w in enumerate(weights)) if weights else 0
        g = share.denominator
        rows.append(f"{int(share.lo * g)} {int(share.hi * g)} {g} {share.part} {packed} {count} {element} {chunk}")
        cut = cut_share(program, 0, count, element, weights or ())
        expected.append(f"{cut.begin} {cut.end} {cut.chunk} {cut.nchunks}")
    source, binary = tmp_path / "cuts.cpp", tmp_path / "cuts"
    source.write_text("#include <algorithm>\n" + SOURCE, encoding="utf-8")
    include = f"-I{resource_dir('templates') / 'include'}"
    subprocess.run([find_cxx().path, "-std=c++17", "-O1", include, str(source), "-o", str(binary)], check=True)
    made = subprocess.run(
        [str(binary)], input="\n".join(rows), capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert made[:-1:2] == expected
    assert made[1::2] == expected
