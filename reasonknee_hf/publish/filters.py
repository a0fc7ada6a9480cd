"""A name for a filter that changes with what it does, and is the same in every process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from datasets.fingerprint import Hasher


def filter_name(function: Callable[..., Any]) -> str:
    """Module, name, and a hash of the code, of what the code uses of its own module, and of bound values."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    # The hasher takes a function of a module by its name alone, so its code is told beside it.
    told = Hasher.hash([function, list(_told(function, set()))])
    return f"{getattr(function, '__module__', '')}.{name}#{told}"


def _told(value: Any, seen: set[int]) -> Iterator[str]:
    """The code of a function, of what wraps it, and of the functions and values that it uses."""
    function = getattr(value, "func", value)  # what is inside a `functools.partial`
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        function = inspect.getattr_static(type(function), "__call__", None)
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    codes = list(_codes(function.__code__))
    for code in codes:
        yield from (code.co_code.hex(), *code.co_names, *code.co_varnames, *code.co_freevars)
        yield from map(_word, code.co_consts)
    used = [function.__globals__.get(name) for code in codes for name in code.co_names]
    used = [one for one in used if getattr(one, "__globals__", function.__globals__) is function.__globals__]
    bound = [cell.cell_contents for cell in function.__closure__ or ()]
    bound += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for one in (*used, *bound):
        yield _word(one)
        if isinstance(one, FunctionType):
            yield from _told(one, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _word(value: Any) -> str:
    """Plain data in words; of anything else, whose words may differ between processes, only the type."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{_word(key)}: {_word(one)}' for key, one in value.items()))}}}"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_word, value)))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_word, value))}]"
    return type(value).__qualname__
