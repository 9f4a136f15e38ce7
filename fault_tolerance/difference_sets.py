"""Sets with distinct differences from finite fields: Singer, Bose and Ruzsa.

- Singer (1938): q + 1 residues mod q^2 + q + 1 for a prime power q: the logarithms of a line in PG(2, q).
- Bose (1942): q residues mod q^2 - 1 for a prime power q: the a with g^a - g in GF(q), g primitive in GF(q^2).
- Ruzsa (1993): p - 1 residues mod p (p - 1) for a prime p: i p + (p - 1) g^i for 1 <= i < p, g primitive mod p.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product


def sizes_for(modulus: int, marks: int) -> Iterator[tuple[str, int]]:
    """(family, order) worth trying for `marks` marks: first those of that very modulus, then small ones."""
    exact, short = [], []
    limit = int(modulus**0.5) + 2
    for order in range(2, max(limit, marks + 20)):
        base = prime_power(order)
        if not base:
            continue
        families = [("singer", order * order + order + 1, order + 1), ("bose", order * order - 1, order)]
        if base == order:
            families.append(("ruzsa", order * (order - 1), order - 1))
        for family, size, has in families:
            if has >= marks:
                if size == modulus:
                    exact.append((family, order))
                elif has <= marks + 12 and size < 2 * modulus:
                    short.append((size, family, order))
    yield from exact
    yield from ((family, order) for _, family, order in sorted(short))


def prime_power(number: int) -> int:
    """The prime of which `number` is a power, or 0."""
    for prime in range(2, number + 1):
        if number % prime == 0:
            while number % prime == 0:
                number //= prime
            return prime if number == 1 else 0
    return 0


def prime_factors(number: int) -> list[int]:
    """Distinct prime factors, ascending."""
    factors, candidate = [], 2
    while candidate * candidate <= number:
        if number % candidate == 0:
            factors.append(candidate)
            while number % candidate == 0:
                number //= candidate
        candidate += 1
    return factors + [number] * (number > 1)


@lru_cache(maxsize=64)
def ruzsa(prime: int) -> tuple[int, ...]:
    """p - 1 residues mod p (p - 1) with distinct differences."""
    root = next(g for g in range(1, prime) if len({pow(g, i, prime) for i in range(prime - 1)}) == prime - 1)
    size = prime * (prime - 1)
    return tuple(sorted((prime * i + (prime - 1) * pow(root, i, prime)) % size for i in range(1, prime)))


@lru_cache(maxsize=64)
def bose(order: int) -> tuple[int, ...]:
    """q residues mod q^2 - 1 with distinct differences."""
    field = Field.over(order, 2)
    size = order * order - 1
    line = {field.add(field.x, element) for element in field.subfield(order)}
    return tuple(a for a, power in enumerate(field.powers(size)) if power in line)


@lru_cache(maxsize=64)
def singer(order: int) -> tuple[int, ...]:
    """q + 1 residues mod q^2 + q + 1 with distinct differences."""
    field = Field.over(order, 3)
    size = order * order + order + 1
    scalars = field.subfield(order)
    multiples = [field.multiply(field.x, scalar) for scalar in scalars]
    plane = {field.add(a, b) for a in scalars for b in multiples}
    return tuple(a for a, power in enumerate(field.powers(size)) if power in plane)


class Field:
    """GF(p^n) with x primitive; an element is the base-p number whose digits are its coefficients."""

    def __init__(self, prime: int, degree: int) -> None:
        self.prime, self.degree = prime, degree
        self.units = prime**degree - 1
        self.x = prime
        self._top = prime ** (degree - 1)
        factors = prime_factors(self.units)
        below = prime_factors(prime - 1)
        for low in product(range(prime), repeat=degree):
            norm = (-1) ** degree * low[0] % prime  # of x; it has to generate the units of GF(p)
            if norm == 0 or any(pow(norm, (prime - 1) // factor, prime) == 1 for factor in below):
                continue
            # x^degree = -(low[0] + low[1] x + ...); the entry c is that times c.
            self._tails = [sum((-c * digit) % prime * prime**i for i, digit in enumerate(low)) for c in range(prime)]
            if self.power(self.units) == 1 and all(self.power(self.units // factor) != 1 for factor in factors):
                return
        raise AssertionError(f"no primitive polynomial of degree {degree} over GF({prime})")

    @classmethod
    def over(cls, order: int, degree: int) -> Field:
        """The extension of GF(order) by `degree`."""
        prime, exponent = prime_power(order), 0
        while order > 1:
            order, exponent = order // prime, exponent + 1
        return cls(prime, degree * exponent)

    def add(self, a: int, b: int) -> int:
        """Sum: digit by digit mod p."""
        prime = self.prime
        if prime == 2:
            return a ^ b
        total, place = 0, 1
        while a or b:
            total += (a % prime + b % prime) % prime * place
            a, b, place = a // prime, b // prime, place * prime
        return total

    def scale(self, a: int, digit: int) -> int:
        """Product with an element of GF(p)."""
        total, place = 0, 1
        while a and digit:
            a, coefficient = divmod(a, self.prime)
            total += coefficient * digit % self.prime * place
            place *= self.prime
        return total

    def times_x(self, a: int) -> int:
        """Product with x, reduced."""
        lead, rest = divmod(a, self._top)
        return self.add(rest * self.prime, self._tails[lead]) if lead else rest * self.prime

    def multiply(self, a: int, b: int) -> int:
        """Product, Horner's scheme over the digits of b."""
        digits = []
        while b:
            b, digit = divmod(b, self.prime)
            digits.append(digit)
        total = 0
        for digit in reversed(digits):
            total = self.times_x(total)
            total = self.add(total, self.scale(a, digit))
        return total

    def power(self, exponent: int) -> int:
        """x to the `exponent`."""
        result = 1
        for bit in bin(exponent)[2:]:
            result = self.multiply(result, result)
            if bit == "1":
                result = self.times_x(result)
        return result

    def powers(self, count: int) -> Iterator[int]:
        """1, x, x^2, ..., `count` of them."""
        element = 1
        for _ in range(count):
            yield element
            element = self.times_x(element)

    def subfield(self, order: int) -> list[int]:
        """The elements of GF(order)."""
        generator, element = self.power(self.units // (order - 1)), 1
        elements = [0]
        for _ in range(order - 1):
            elements.append(element)
            element = self.multiply(element, generator)
        return elements


FAMILIES: dict[str, Callable[[int], tuple[tuple[int, ...], int]]] = {
    "singer": lambda q: (singer(q), q * q + q + 1),
    "bose": lambda q: (bose(q), q * q - 1),
    "ruzsa": lambda p: (ruzsa(p), p * (p - 1)),
}
"""Name to (residues, modulus) by order."""
