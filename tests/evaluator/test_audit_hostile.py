"""Texts that must be turned away, each with the status that it gets."""

import pytest

from jaxbench_env.evaluator.audit import MAX_LENGTH, audit
from jaxbench_env.evaluator.result import Status

TAIL = "\ndef workload(x):\n    return x\n"

REJECTED = {
    "import os": "import os",
    "import of a submodule": "import os.path as p",
    "import inside a function": "def f():\n    import subprocess",
    "import in a class body": "class A:\n    import jax",
    "from import": "from sys import modules",
    "several imports": "import math, gc",
    "star import": "from jax import *",
    "relative import": "from . import secrets",
    "fullwidth letters": "import ｏｓ",
    "ctypes": "import ctypes",
    "threads": "import threading",
    "inspect": "import inspect",
    "time": "import time",
    "workloads": "import workloads",
    "jax._src": "import jax._src.core",
    "from jax._src": "from jax._src import core",
    "jax.extend": "import jax.extend",
    "jax.debug by attribute": "import jax as j\nx = j.debug.callback",
    "jax.debug by from": "from jax import debug",
    "jax.debug by another name": "import jax\ny = jax\ny.debug.print('x')",
    "jax.debug by two other names": "import jax\nz = y = jax\nw = z\nw.debug",
    "jax.debug by annotated name": "import jax\ny: object = jax\ny.debug",
    "jax.debug by global": "import jax\ndef f():\n    global y\n    y = jax\ny.debug",
    "jax.debug by global import": "def f():\n    global y\n    import jax as y\ny.debug",
    "module as an argument": "import jax\n(lambda m: m.debug)(jax)",
    "module as a default": "import jax\ndef f(m=jax):\n    return m.debug",
    "module in a list": "import jax\n[jax][0].debug",
    "module in a tuple": "import jax\na, b = jax, 1\na.debug",
    "module by walrus": "import jax\n(j := jax).debug",
    "module by condition": "import jax\n(jax if 1 else jax).debug",
    "module as class attribute": "import jax\nclass A:\n    j = jax\nA.j.debug",
    "module by match": "import jax\nmatch jax:\n    case j:\n        j.debug",
    "module by for": "import jax\nfor j in (jax,):\n    j.debug",
    "callback": "import jax\njax.pure_callback(print, None)",
    "io_callback": "from jax.experimental import io_callback",
    "jax.config": "import jax\njax.config.update('jax_enable_x64', True)",
    "profiler": "import jax\njax.profiler.start_trace('x')",
    "monitoring": "import jax.monitoring",
    "export": "from jax import export",
    "platform branch": "import jax\njax.lax.platform_dependent(1, cpu=f, tpu=g)",
    "backend branch": "import jax\nf = jax.default_backend() == 'cpu'",
    "primitive": "from jax import lax\nlax.add_p.def_impl(lambda x, y: x)",
    "custom rule of a library function": "import jax\njax.nn.relu.defjvp(print)",
    "interpret mode": "from jax.experimental.pallas import tpu as t\nt.set_tpu_interpret_mode(0)",
    "private module through tpu": "from jax.experimental.pallas import tpu as t\nt.core",
    "library kernel": "from jax.experimental.pallas.ops.tpu import flash_attention",
    "library kernel by attribute": "import jax.experimental.pallas as pl\npl.ops.tpu",
    "tokamax": "import tokamax",
    "numpy file": "import numpy as np\nnp.save('x', 1)",
    "numpy memory map": "import numpy\nnumpy.memmap('x')",
    "numpy by from": "from numpy import fromfile",
    "numpy's ctypes": "import numpy as np\nnp.ctypeslib.load_library('c', '/')",
    "array to file": "def f(x):\n    x.tofile('y')",
    "sys by typing": "import typing\ntyping.sys.modules",
    "sys by from typing": "from typing import sys",
    "builtins by enum": "import enum\nenum.bltns",
    "inspect by dataclasses": "import dataclasses\ndataclasses.inspect",
    "type hints evaluated": "import typing\ntyping.get_type_hints(f)",
    "attrgetter": "from operator import attrgetter",
    "methodcaller": "import operator\noperator.methodcaller('x')",
    "open": "open('x')",
    "exec": "exec('x')",
    "eval by another name": "e = eval\ne('1')",
    "eval in a decorator": "@eval\ndef f(): pass",
    "eval in a default": "def f(eval, g=eval): pass",
    "eval in an annotation": "def f(eval, g: eval('1')): pass",
    "eval in a comprehension": "[eval for eval in [eval]]",
    "eval bound in another function": "def f(eval): pass\neval('1')",
    "eval deleted at the top": "eval = 1\ndel eval\neval('1')",
    "eval in a class body": "class A:\n    eval = eval",
    "eval after global": "def f():\n    global eval\n    eval('1')",
    "fullwidth eval": "ｅｖａｌ('1')",
    "compile": "compile('', '', 'exec')",
    "getattr": "getattr(1, 'x')",
    "hasattr": "hasattr(1, 'x')",
    "setattr": "setattr(f, 'x', 1)",
    "globals": "globals()['x'] = 1",
    "vars": "vars()",
    "__import__": "__import__('os')",
    "__builtins__": "__builtins__['eval']",
    "breakpoint": "breakpoint()",
    "input": "input()",
    "memoryview": "memoryview(b'')",
    "exit": "exit(0)",
    "SystemExit": "raise SystemExit(0)",
    "three-argument type": "type('A', (), {})",
    "type as a value": "t = type",
    "metaclass": "class M(type): pass",
    "dunder walk": "().__class__.__base__.__subclasses__()",
    "dunder in a function": "def f(x):\n    return x.__globals__",
    "dunder string": "import jax\njax.tree_util.register_dataclass(A, ['__dict__'], [])",
    "dunder keyword": "dict(__class__=1)",
    "dunder parameter": "def f(__class__): pass",
    "dunder method": "class A:\n    def __getattr__(self, n): pass",
    "descriptor": "class A:\n    def __set_name__(self, o, n): pass",
    "dunder function": "def __init__(): pass",
    "dunder import name": "import math as __m__",
    "dunder capture": "match 1:\n    case __x__: pass",
    "dunder class pattern": "match 1:\n    case object(__class__=c): pass",
    "frame by class pattern": "match 1:\n    case object(gi_frame=c): pass",
    "dunder in f-string": "f'{f.__globals__}'",
    "generator frame": "def f(g):\n    return g.gi_frame.f_builtins",
    "traceback frame": "def f(e):\n    return e.tb_frame",
    "private attribute": "def f(x):\n    return x._trace",
    "private attribute of jax": "import jax.numpy as jnp\njnp._x",
    "format walk": "'{0.real}'.format(1)",
    "format index walk": "'{0[x]}'.format(1)",
    "format walk in a spec": "'{:{0.real}}'.format(1)",
    "format of a variable": "f = '{0.' + 'real}'\nf.format(1)",
    "format by str": "str.format('{0.real}', 1)",
    "format_map": "'{x}'.format_map({})",
    "assignment to a module": "import jax\njax.jit = 1",
    "assignment to an alias": "import jax.numpy as jnp\ny = jnp\ny.dot = 1",
    "assignment to an import": "from jax import jit\njit.x = 1",
    "augmented assignment": "import jax\njax.jit += 1",
    "deletion": "import jax\ndel jax.jit",
    "for target": "import jax\nfor jax.jit in [1]: pass",
    "with target": "import jax\nwith f() as jax.jit: pass",
    "tuple target": "import jax\na, jax.jit = 1, 2",
    "starred target": "import jax\n*jax.jit, a = 1, 2",
    "comprehension target": "import jax\n[1 for jax.jit in [1]]",
    "annotated target": "import jax\njax.jit: int = 1",
    "item of an import": "from jax import nn\nnn.x['a'] = 1",
    "attribute of a parameter": "def f(m):\n    m.jit = 1",
    "attribute of a call": "f().jit = 1",
    "class patched by instance": "import jax\nclass A: pass\na = A()\na = jax.Array\na.x = 1",
    "module by a failed attribute": "import operator\ntry: operator.x\n"
    "except AttributeError as e: e.obj",
    "module by a failed attribute, matched": "match 1:\n    case AttributeError(obj=m): m",
    "attributes by register_dataclass": "import jax\n"
    "jax.tree_util.register_dataclass(type(f), ['__glo' + 'bals__'], [])",
    "attributes by a partial of it": "import functools, jax\n"
    "@functools.partial(jax.tree_util.register_dataclass, data_fields=['x'])\nclass A: pass",
    "attributes by the registry": "import jax\njax.tree_util.default_registry",
    "dataclass of an import": "import dataclasses, jax\ndataclasses.dataclass(jax.Array)",
    "total_ordering of an import": "import functools, jax\nfunctools.total_ordering(jax.Array)",
    "primitive of a jaxpr": "def f(eqn):\n    eqn.primitive.def_impl(print)",
    "frames of a jaxpr": "def f(eqn):\n    eqn.source_info.traceback.raw_frames()",
    "client of a device": "def f(x):\n    return x.device.client",
    "update_wrapper": "import functools\nfunctools.update_wrapper(f, g)",
    "wraps as a function": "import functools\nfunctools.wraps(f)(g)",
    "wraps by another name": "from functools import wraps\nw = wraps",
    "make_dataclass": "from dataclasses import make_dataclass",
    "encoding": "# -*- coding: rot13 -*-",
    "endless aliases": "import jax\nx = jax\nx = x.a",
}

SYNTAX = {
    "no Python": "this is a kernel",
    "empty": "",
    "blank": " \n\t\n",
    "null byte": "x = 1\0",
    "lone surrogate": "x = '\ud800'",
    "brackets": "(" * 5000,
    "prefixes": "-" * 50_000 + "1",
    "chain": "1" + "+1" * 50_000,
    "attributes": "a" + ".a" * 50_000,
    "calls": "a" + "()" * 50_000,
    "lambdas": "lambda:" * 20_000 + "1",
    "elif": "if a: pass\n" + "elif a: pass\n" * 10_000,
    "indentation": "\n".join(" " * i + "if 1:" for i in range(300)),
    "prefixes in an f-string": "f'{" + "-" * 20_000 + "1}'",
    "truncated": "def workload(x",
    "digits": "x = " + "9" * 10_000,
}


@pytest.mark.parametrize("name", REJECTED)
def test_a_text_that_breaks_a_rule_is_rejected_with_a_line(name):
    text = REJECTED[name]
    found = audit(text + TAIL)
    assert found is not None and found.status is Status.REJECTED
    assert len(found.message) > 20
    if name != "endless aliases":
        assert 1 <= found.line <= text.count("\n") + 1


@pytest.mark.parametrize("name", SYNTAX)
def test_a_text_that_is_not_python_is_a_syntax_error(name):
    found = audit(SYNTAX[name])
    assert found is not None and found.status is Status.SYNTAX_ERROR


def test_the_length_is_limited():
    text = "# " + "x" * MAX_LENGTH + TAIL
    found = audit(text)
    assert found is not None and found.status is Status.REJECTED
    assert "200,000" in found.message
    assert audit("#" * (MAX_LENGTH - len(TAIL)) + TAIL) is None


@pytest.mark.parametrize(
    "text",
    [
        "import jax",
        "def kernel(x):\n    return x",
        "def f():\n    def workload(x): pass",
        "class A:\n    def workload(x): pass",
    ],
)
def test_a_text_without_workload_has_the_wrong_signature(text):
    found = audit(text)
    assert found is not None and found.status is Status.WRONG_SIGNATURE
    assert "define `workload(...)`" in found.message


@pytest.mark.parametrize(
    "text",
    [
        "from math import floor as workload",
        "workload = lambda x: x",
        "if True:\n    def workload(x): pass",
        "def f():\n    global workload\n    workload = abs",
    ],
)
def test_workload_may_be_bound_in_any_way_at_the_top(text):
    assert audit(text) is None


def test_the_first_of_several_findings_is_reported():
    found = audit("import jax\nimport os\nopen('x')" + TAIL)
    assert found.line == 2 and "`os`" in found.message


def test_library_kernels_are_allowed_only_where_asked_for():
    for text in (
        "from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention",
        "import jax.experimental.pallas.ops.tpu.megablox as m\ny = m.gmm",
        "import jax\ny = jax.experimental.pallas.ops.tpu.megablox.gmm",
        "import tokamax\ny = tokamax.attention",
    ):
        assert audit(text + TAIL).status is Status.REJECTED
        assert audit(text + TAIL, allow_library_kernels=True) is None
    assert audit("import os" + TAIL, allow_library_kernels=True).status is Status.REJECTED


def test_messages_say_what_to_do_instead():
    assert "a kernel may import jax" in audit("import os" + TAIL).message
    assert "x.name" in audit("getattr(1, 'x')" + TAIL).message
    assert "remove the debugging code" in audit("import jax\njax.debug" + TAIL).message


def test_warnings_of_the_parser_are_not_shown(recwarn, capfd):
    assert audit("x = '\\d'\ny = 1 is 1" + TAIL) is None
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")
