#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the polynomial coefficients of sampling/elementary-inl.h (needs numpy and mpmath).

exp: (e^r - 1 - r) / r^2 on |r| <= ln2/2, weighted for relative error of e^r.
log: (log(1+f) - f + f^2/2) / f^3 on sqrt(1/2)-1 <= f <= sqrt(2)-1, weighted for relative error of log(1+f).
Each fit is a Remez exchange on a fine grid; coefficients are rounded to float32 from the lowest order up, the
others being fitted again after each rounding."""

import mpmath as mp
import numpy as np

mp.mp.dps = 40


def remez(grid, value, weight, degree, fixed):
    """Minimax fit of sum c_i x^i with the first len(fixed) coefficients given."""
    free = list(range(len(fixed), degree + 1))
    target = value - sum(c * grid**i for i, c in enumerate(fixed))
    n = len(free) + 1
    index = np.unique(np.round((1 - np.cos(np.linspace(0, np.pi, n))) / 2 * (len(grid) - 1)).astype(int))
    for _ in range(60):
        matrix = np.array([[grid[i] ** k for k in free] + [(-1) ** j / weight[i]] for j, i in enumerate(index)], dtype=float)
        solution = np.linalg.solve(matrix, target[index])
        error = (target - sum(solution[j] * grid**k for j, k in enumerate(free))) * weight
        # New extrema: the largest error of each sign run.
        signs = np.sign(error)
        borders = np.flatnonzero(np.diff(signs)) + 1
        pieces = np.split(np.arange(len(grid)), borders)
        picks = [p[np.argmax(np.abs(error[p]))] for p in pieces if len(p)]
        while len(picks) > n:
            if abs(error[picks[0]]) < abs(error[picks[-1]]):
                picks.pop(0)
            else:
                picks.pop()
        if len(picks) < n or np.array_equal(picks, index):
            break
        index = np.array(picks)
    return solution[:-1], np.max(np.abs(error))


def fit(name, grid, value, weight, degree):
    fixed = []
    for _ in range(degree + 1):
        coefficients, error = remez(grid, value, weight, degree, fixed)
        fixed.append(float(np.float32(coefficients[0])))
    print(name, f"weighted error {error:.3g}")
    for c in fixed:
        print("   ", float(c).hex(), f"{c:.9g}")


def main():
    half = float(mp.log(2) / 2) * 1.0001
    grid = np.linspace(-half, half, 4001)
    value = np.array([float((mp.e**x - 1 - x) / x**2) if x else 0.5 for x in map(mp.mpf, grid)])
    weight = np.array([float(x**2 / mp.e**x) for x in map(mp.mpf, grid)]) + 1e-12
    fit("exp", grid, value, weight, 4)
    fit("exp5", grid, value, weight, 5)
    low, high = float(mp.sqrt(0.5)) - 1, float(mp.sqrt(2)) - 1
    grid = np.linspace(low, high, 4001)
    value = np.array([float((mp.log(1 + x) - x + x**2 / 2) / x**3) if abs(x) > 1e-9 else 1 / 3 for x in map(mp.mpf, grid)])
    weight = np.array([abs(float(x**3 / mp.log(1 + x))) if abs(x) > 1e-9 else 0.0 for x in map(mp.mpf, grid)]) + 1e-12
    for d in (7, 8):
        fit(f"log{d}", grid, value, weight, d)


if __name__ == "__main__":
    main()
