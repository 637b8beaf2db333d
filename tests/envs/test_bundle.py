"""Files as one program: they import each other, and none gets out of its folder."""

import pytest

from envs.bundle import CALL, MAX_BUNDLE_BYTES, bundle
from envs.function_calls import CallResult, call_function

FILES = {
    "solution.py": "from shop.prices import price\n\ndef f(name, count):\n"
    "    return {name: price(name) * count}\n",
    "shop/prices.py": "def price(name): return len(name)\n",
    "json.py": "raise ValueError('mine')\n",
}


async def test_a_function_finds_the_other_files_and_gets_its_arguments_by_name():
    program = bundle(FILES, "solution", "f")
    inputs = [{"name": "pear", "count": 3}, {"count": 2}]
    assert await call_function(program, CALL, inputs) == (
        CallResult(value={"pear": 12}),
        CallResult(error="TypeError"),
    )


async def test_a_file_does_not_stand_in_for_the_standard_library():
    files = {**FILES, "solution.py": "import json\ndef f(x): return json.dumps(x)"}
    (result,) = await call_function(bundle(files, "solution", "f"), CALL, [{"x": [1]}])
    assert result == CallResult(value="[1]")


async def test_a_missing_module_is_the_submissions_error():
    results = await call_function(bundle({}, "solution", "f"), CALL, [{}])
    assert results == (CallResult(error="ModuleNotFoundError"),)


@pytest.mark.parametrize("path", ["/etc/x.py", "../x.py", "a/../../x.py", "a\0.py"])
def test_a_path_out_of_the_folder_is_refused(path):
    with pytest.raises(ValueError, match="no path below a folder"):
        bundle({path: ""}, "solution", "f")


def test_files_that_are_too_large_are_refused():
    with pytest.raises(ValueError, match="characters together"):
        bundle({"a.py": "x" * MAX_BUNDLE_BYTES}, "a", "f")
