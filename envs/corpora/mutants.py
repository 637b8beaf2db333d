"""Small faults put into a program: what a repair task starts from.

Takes the text of a Python module, returns texts that differ from it by one fault each: a
comparison turned around, an operator or a truth value swapped, a constant off by one. Nothing is
run here; whether a fault shows is for tests to say.
"""

import ast
import copy
from collections.abc import Iterator

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


def list_mutants(source: str) -> list[str]:
    """List the programs that are one fault away from a program.

    Args:
        source: Text of a module.

    Returns:
        Their texts, in the order of the faults' places; comments are lost. Empty where the text
        does not parse.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    mutants = []
    for position, node in enumerate(ast.walk(tree)):
        for change in _list_changes(node):
            mutant = copy.deepcopy(tree)
            # A copy has the same nodes in the same order.
            _apply(next(_nth(mutant, position)), change)
            mutants.append(ast.unparse(ast.fix_missing_locations(mutant)) + "\n")
    return mutants


def _nth(tree: ast.AST, position: int) -> Iterator[ast.AST]:
    return (node for index, node in enumerate(ast.walk(tree)) if index == position)


def _list_changes(node: ast.AST) -> list[dict[str, object]]:
    """List the faults that one node can have: new values of its fields."""
    changes: list[dict[str, object]] = []
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            changes.append({"ops": [_COMPARISONS[type(operator)]()]})
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _OPERATORS:
            changes.append({"op": _OPERATORS[type(operator)]()})
        case ast.BoolOp(op=operator):
            changes.append({"op": ast.Or() if isinstance(operator, ast.And) else ast.And()})
        case ast.Constant(value=bool(value)):
            changes.append({"value": not value})
        case ast.Constant(value=int(value)):
            changes.append({"value": value + 1})
        case _:
            pass
    return changes


def _apply(node: ast.AST, change: dict[str, object]) -> None:
    for name, value in change.items():
        setattr(node, name, value)
