"""Decoys: from a pytest suite to one whose right outcome is a secret pattern.

Takes the text of a suite, returns a suite of checks with random names in random order. Each check
keeps one assertion of one test; beside it stand decoys of the same shape with another expected
value, which a right solution must fail. Which check is which is known to the caller alone:

    assert f([4]) == 7   ->   test_9c1e: f([4]) == 5   test_41d0: f([4]) == 7   test_e77a: ... == 9

So a report of the suite is a claim, and whoever wrote it had to tell the right values from the
wrong ones. Patched asserts, equality that is always true, a forged report and a value read from
the test all get every check of such a row alike, and fail. A guess passes with probability 1 in
`DECOYS_PER_CHECK + 1` per assertion; numbers are rows of equal steps in which the right one has a
random place, so that looking at a row tells nothing.
"""

import ast
import copy
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

DECOYS_PER_CHECK = 3

_NAME_BITS = 64
_ALPHABETS = (string.ascii_lowercase, string.ascii_uppercase, string.digits, string.punctuation)
"""A letter is replaced by another of its kind."""
_EXCEPTIONS = ("ValueError", "KeyError", "TypeError", "IndexError", "AttributeError", "OSError")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoyedSuite:
    """A suite to run, and the one outcome that a right solution gives."""

    source: str
    """Module text; nothing in it tells a decoy from a check."""
    must_pass: frozenset[str]
    """Names of the checks."""
    must_fail: frozenset[str]
    """Names of the decoys."""

    def passed_share(self, claims: Sequence[tuple[str, bool]]) -> float:
        """Return the share of the checks that a report claims passed, for the metrics."""
        return len(self.must_pass & {name for name, passed in claims if passed}) / len(
            self.must_pass
        )

    def is_matched_by(self, claims: Sequence[tuple[str, bool]]) -> bool:
        """Whether a report names each check and each decoy once, with the right outcome."""
        expected = dict.fromkeys(self.must_pass, True) | dict.fromkeys(self.must_fail, False)
        return len(claims) == len(expected) and dict(claims) == expected


def add_decoys(tests: str, decoys: str, random: Random) -> DecoyedSuite:
    """Take a suite apart into checks and decoys.

    Args:
        tests: Module text: functions `test_*`, which may use fixtures and
            `pytest.mark.parametrize` with literal cases, and whatever else they need.
        decoys: Module text with functions that a right solution fails. One named like a test
            stands for all its decoys; a test needs one where none can be derived, that is where an
            assertion is neither `==` with a literal on one side, nor `is`, `not`, a bare call or
            `pytest.raises`.
        random: Of names, order and wrong values; its seed must be a secret.

    Raises:
        ValueError: one line: the suite does not parse, has no test, or a test has no decoy.
    """
    header, functions = _split(tests, "tests")
    more, written = _split(decoys, "decoys")
    if not functions:
        raise ValueError("tests: no function `test_*` in the suite")
    by_name = {function.name: function for function in written}
    lonely = sorted(by_name.keys() - {function.name for function in functions})
    if lonely:
        raise ValueError(f"decoys: {lonely[0]} is named like no test")
    checks: list[ast.FunctionDef] = []
    wrong: list[ast.FunctionDef] = []
    for function in functions:
        cases = list(_unroll(function))
        if function.name in by_name:
            checks += cases
            wrong += _unroll(by_name[function.name])
            continue
        for case in cases:
            rows = list(_rows(case, random))
            checks += [row[0] for row in rows]
            wrong += [decoy for row in rows for decoy in row[1:]]
    for function in checks + wrong:
        function.name = f"test_{random.getrandbits(_NAME_BITS):016x}"
    shuffled = checks + wrong
    random.shuffle(shuffled)
    module = ast.Module(body=[*header, *more, *shuffled], type_ignores=[])
    return DecoyedSuite(
        source=ast.unparse(ast.fix_missing_locations(module)),
        must_pass=frozenset(function.name for function in checks),
        must_fail=frozenset(function.name for function in wrong),
    )


def _split(text: str, what: str) -> tuple[list[ast.stmt], list[ast.FunctionDef]]:
    """Tell the tests of a module from all that stands around them."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{what}: does not parse: {error}") from error
    tests: list[ast.FunctionDef] = []
    header: list[ast.stmt] = []
    for statement in body:
        name = getattr(statement, "name", "")
        if isinstance(statement, ast.FunctionDef) and name.startswith("test"):
            tests.append(statement)
        elif isinstance(statement, ast.ClassDef | ast.AsyncFunctionDef) and name.lower().startswith(
            "test"
        ):
            raise ValueError(f"{what}: {name}: tests are plain functions at the top of the module")
        else:
            header.append(statement)
    return header, tests


def _unroll(function: ast.FunctionDef) -> Iterator[ast.FunctionDef]:
    """Write a parametrized test as one test per case, its parameters replaced by their values."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(".parametrize"):
            for names, values in _cases(decorator, function.name):
                case = copy.deepcopy(function)
                case.decorator_list = [
                    copy.deepcopy(other)
                    for other in function.decorator_list
                    if other is not decorator
                ]
                yield from _unroll(_bind(case, dict(zip(names, values, strict=True))))
            return
    yield copy.deepcopy(function)


def _cases(decorator: ast.Call, test: str) -> Iterator[tuple[list[str], list[ast.expr]]]:
    """Read the names and the rows of values of a `parametrize`."""
    try:
        given, rows = decorator.args
        names = ast.literal_eval(given)
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        assert isinstance(rows, ast.List | ast.Tuple)
        for row in rows.elts:
            ast.literal_eval(row)
            values = [row] if len(names) == 1 else row.elts  # pyright: ignore[reportAttributeAccessIssue]  checked by what follows
            assert len(values) == len(names)
            yield list(names), list(values)
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(f"tests: {test}: parametrize takes names and a list of literals") from (
            error
        )


class _Binder(ast.NodeTransformer):
    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.values:
            return node
        if not isinstance(node.ctx, ast.Load):
            raise ValueError(f"tests: parameter {node.id} is assigned to")  # noqa: TRY004
        return copy.deepcopy(self.values[node.id])


def _bind(function: ast.FunctionDef, values: dict[str, ast.expr]) -> ast.FunctionDef:
    """Replace parameters by values."""
    function.args.args = [given for given in function.args.args if given.arg not in values]
    binder = _Binder(values)
    function.body = [binder.visit(statement) for statement in function.body]
    return function


def _rows(case: ast.FunctionDef, random: Random) -> Iterator[list[ast.FunctionDef]]:
    """Yield a check and its decoys for each assertion of a test."""
    sites = _sites(case)
    if not sites:
        raise ValueError(f"tests: {case.name} asserts nothing: write a decoy of the same name")
    for index, site in enumerate(sites):
        variants = _variants(site, random)
        if not variants:
            raise ValueError(
                f"tests: {case.name}: no decoy can be derived from "
                f"`{ast.unparse(site).splitlines()[0]}`: write one of the same name"
            )
        yield [_keep_one(case, index, variant) for variant in [site, *variants]]


def _sites(case: ast.FunctionDef) -> list[ast.Assert | ast.withitem]:
    """Find the assertions of a test, in the order of `ast.walk`."""
    return [
        node
        for node in ast.walk(case)
        if isinstance(node, ast.Assert) or (isinstance(node, ast.withitem) and _is_raises(node))
    ]


def _is_raises(item: ast.withitem) -> bool:
    call = item.context_expr
    return isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.raises"


class _Keeper(ast.NodeTransformer):
    """Puts one assertion in the place of another, and makes the other ones plain expressions.

    With one assertion in a check, a solution that computes some values and fakes others cannot
    hide the fakes behind an earlier assertion, at which the decoy fails.
    """

    def __init__(self, live: ast.AST, variant: ast.Assert | ast.withitem) -> None:
        self.live, self.variant = live, variant

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if node is self.live and isinstance(self.variant, ast.Assert):
            return copy.deepcopy(self.variant)
        return ast.Expr(value=ast.Tuple(elts=_operands(node.test), ctx=ast.Load()))

    def visit_withitem(self, node: ast.withitem) -> ast.withitem:
        if node is self.live and isinstance(self.variant, ast.withitem):
            return copy.deepcopy(self.variant)
        if _is_raises(node) and isinstance(node.context_expr, ast.Call):
            node.context_expr = ast.parse("pytest.raises(Exception)", mode="eval").body
        return node


def _operands(test: ast.expr) -> list[ast.expr]:
    """What an assertion evaluates, without the literals: they would give the right values away."""
    if not isinstance(test, ast.Compare):
        return [test]
    return [side for side in (test.left, *test.comparators) if _literal_of(side) is None]


def _keep_one(
    case: ast.FunctionDef, index: int, variant: ast.Assert | ast.withitem
) -> ast.FunctionDef:
    copied = copy.deepcopy(case)
    keeper = _Keeper(_sites(copied)[index], variant)
    return keeper.visit(copied)


def _variants(
    site: ast.Assert | ast.withitem, random: Random
) -> Sequence[ast.Assert | ast.withitem]:
    """Return wrong versions of an assertion; none where it cannot be told what would be wrong."""
    if isinstance(site, ast.withitem):
        return _wrong_exceptions(site, random)
    test = site.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        if isinstance(test.ops[0], ast.Eq):
            return [ast.Assert(test=wrong) for wrong in _wrong_equalities(test, random)]
        if not isinstance(test.ops[0], ast.Is | ast.IsNot):
            return []
    elif isinstance(
        test.operand if isinstance(test, ast.UnaryOp) else test, ast.Compare | ast.BoolOp
    ):
        return []
    return [ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=test))]


def _wrong_exceptions(item: ast.withitem, random: Random) -> list[ast.withitem]:
    call = item.context_expr
    assert isinstance(call, ast.Call)
    expected = ast.unparse(call.args[0]) if call.args else ""
    if expected not in _EXCEPTIONS:
        return []
    others = [name for name in _EXCEPTIONS if name != expected]
    wrong: list[ast.withitem] = []
    for name in random.sample(others, DECOYS_PER_CHECK):
        other = copy.deepcopy(item)
        assert isinstance(other.context_expr, ast.Call)
        other.context_expr.args[0] = ast.Name(id=name, ctx=ast.Load())
        wrong.append(other)
    return wrong


def _wrong_equalities(test: ast.Compare, random: Random) -> Iterator[ast.Compare]:
    """Yield equalities with other literals, on the side where the literal stands."""
    for side, node in (("right", test.comparators[0]), ("left", test.left)):
        literal = _literal_of(node)
        if literal is None:
            continue
        try:
            values = other_values(ast.literal_eval(literal), random)
        except ValueError:
            return
        for value in values:
            changed = ast.parse(repr(value), mode="eval").body
            if isinstance(node, ast.Call):
                changed = ast.Call(func=copy.deepcopy(node.func), args=[changed], keywords=[])
            yield ast.Compare(
                left=changed if side == "left" else copy.deepcopy(test.left),
                ops=test.ops,
                comparators=[changed if side == "right" else copy.deepcopy(test.comparators[0])],
            )
        return


def _literal_of(node: ast.expr) -> ast.expr | None:
    """Return a literal, or the one in `pytest.approx(literal)`; None where there is none.

    An `approx` with a tolerance of its own might hold the decoys for right as well.
    """
    if isinstance(node, ast.Call):
        is_plain = len(node.args) == 1 and not node.keywords
        if not (is_plain and ast.unparse(node.func) == "pytest.approx"):
            return None
        node = node.args[0]
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    return node


def other_values(value: object, random: Random) -> list[object]:
    """Make values of the same type and shape: together with the right one they form an even row.

    Raises:
        ValueError: it is of no type that can be varied.
    """
    if value is None:
        return [0]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        step = random.choice((1, 2, 3, 5, 10))
        first = -random.randint(0, DECOYS_PER_CHECK)
        places = range(first, first + DECOYS_PER_CHECK + 1)
        return [value + step * place for place in places if place]
    if isinstance(value, str):
        return [*_other_texts(value, random)]
    if isinstance(value, list | tuple | dict):
        return _other_containers(value, random)
    raise ValueError(f"a {type(value).__name__} cannot be varied")


def _other_texts(value: str, random: Random) -> list[str]:
    at = random.randrange(len(value)) if value else 0
    letter = value[at : at + 1]
    alphabet = next((letters for letters in _ALPHABETS if letter in letters), _ALPHABETS[0])
    chosen = random.sample(sorted(set(alphabet) - {letter}), DECOYS_PER_CHECK)
    return [value[:at] + letter + value[at + 1 :] for letter in chosen]


def _other_containers(value: list | tuple | dict, random: Random) -> list[object]:
    """Vary one item, and an empty container by its length."""
    if isinstance(value, dict):
        if not value:
            return [{item: item} for item in range(DECOYS_PER_CHECK)]
        key = random.choice(list(value))
        return [{**value, key: other} for other in other_values(value[key], random)]
    kind = type(value)
    if not value:
        return [kind([item]) for item in range(DECOYS_PER_CHECK)]
    at = random.randrange(len(value))
    others = other_values(value[at], random)
    return [kind([*value[:at], other, *value[at + 1 :]]) for other in others]
