"""Skipping repetitions is exact: random programs, with and without it, end in the same state."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timing_listings import listing, loop

from jaxbench_env.evaluator.timing import Constants, steady
from jaxbench_env.evaluator.timing.bundles import parse
from jaxbench_env.evaluator.timing.machine import Engine, OutOfSteps
from jaxbench_env.evaluator.timing.program import AddressMap, Program

K = Constants.load()
MAX_STEPS = 300_000
WORDS = "[#allocation9 + $0x{:x}]"
FLAGS = 6

# Values s10 .. s15 live as long as the program and are carried around all loops.
SCALARS = [f"%s{number}_s{number}" for number in range(10, 16)]
NUMBERS = st.sampled_from([-3, -1, 0, 1, 2, 3, 5, 7, 8, 15, 16, 100, 1023, -2147483648, 2147483647])
OPS = st.sampled_from(
    "sadd.s32 ssub.s32 sadd.s32 ssub.s32 smul.u32 sand.u32 sor.u32 sxor.u32 sshll.u32 sshrl.u32 "
    "sshra.s32 smin.s32 smax.s32 smin.u32 scalar_lea.smem".split()
)
TESTS = st.sampled_from("lt.s32 le.s32 gt.s32 ge.s32 eq.s32 ne.s32 lt.u32 ge.u32".split())
SIZES = st.sampled_from([1, 100, 4096])


class Writer:
    """Turns a drawn tree of statements into bundles; numbers values, regions and predicates."""

    def __init__(self):
        self.number = 100

    def fresh(self):
        self.number += 10
        return self.number

    def block(self, statements, counters):
        return [bundle for one in statements for bundle in self.statement(one, counters)]

    def operand(self, drawn, counters):
        """A loop counter, a scalar or a number."""
        kind, choice = drawn
        if kind == "counter" and counters:
            return counters[choice % len(counters)]
        return str(choice) if kind == "number" else SCALARS[choice % len(SCALARS)]

    def condition(self, drawn, counters):
        """Bundles that set a predicate, and the predicate."""
        test, left, right, mask, negated = drawn
        number = self.fresh()
        masked, predicate = f"%s{number}_s7", f"%p{number}_p3"
        return [
            f"{masked} = sand.u32 {self.operand(left, counters)}, {mask}",
            f"{predicate} = scmp.{test} {masked}, {self.operand(right, counters)}",
        ], f"{'!' if negated else ''}{predicate}"

    def flag(self, which, counters):
        """Bundles and operand for a flag: fixed, or alternating with a counter over 2..4 slots."""
        kind, choice, slots = which
        if kind == "fixed" or not counters:
            return [], f"[#allocation4 + $0x{choice % FLAGS:x}]"
        number = self.fresh()
        counter = counters[choice % len(counters)]
        return [
            f"%{number} = sdivrem.u32 {counter}, {slots} /* kRem */",
            f"%s{number + 1}_s7 = spop.drf %{number}",
            f"%s{number + 2}_s7 = scalar_lea.sflag [#allocation4], %s{number + 1}_s7",
        ], f"%s{number + 2}_s7"

    def statement(self, one, counters):
        kind, *drawn = one
        if kind == "work":
            return [""] * drawn[0]
        if kind == "set":
            op, dest, left, right = drawn
            operands = f"{self.operand(left, counters)}, {self.operand(right, counters)}"
            return [f"{SCALARS[dest]} = {op} {operands}"]
        if kind == "choose":
            condition, dest, value = drawn
            bundles, predicate = self.condition(condition, counters)
            old = SCALARS[dest]
            return [*bundles, f"{old} = smov ({predicate}, {old}), {self.operand(value, counters)}"]
        if kind == "store":
            where, value = drawn
            return [f"%9 = sst [smem:{WORDS.format(where)}] {self.operand(value, counters)}"]
        if kind == "load":
            return [f"{SCALARS[drawn[0]]} = sld [smem:{WORDS.format(drawn[1])}]"]
        if kind == "dma":
            which, size, condition = drawn
            bundles, flag = self.flag(which, counters)
            guard = ""
            if condition is not None:
                more, predicate = self.condition(condition, counters)
                bundles, guard = [*bundles, *more], f"({predicate}), "
            return [
                *bundles,
                f"%7 = dma.hbm_to_vmem {guard}/*hbm=*/%s90_s9, /*size_in_granules=*/{size}, "
                f"/*vmem=*/%s91_s9, /*dst_syncflagno=*/{flag}",
            ]
        if kind == "wait":
            which, size = drawn
            bundles, flag = self.flag(which, counters)
            return [
                *bundles,
                f"%8 = dma.done.wait {flag}, {size}",
                f"%9 = vsyncadd {flag}, -{size}",
            ]
        if kind == "transfer":
            which, size, work = drawn
            bundles, flag = self.flag(which, counters)
            return [
                *bundles,
                f"%7 = dma.vmem_to_hbm /*vmem=*/%s90_s9, /*size_in_granules=*/{size}, "
                f"/*hbm=*/%s91_s9, /*dst_syncflagno=*/{flag}",
                *[""] * work,
                f"%8 = dma.done.wait {flag}, {size}",
                f"%9 = vsyncadd {flag}, -{size}",
            ]
        if kind == "doubt":
            condition, unknown = drawn
            bundles, predicate = self.condition(condition, counters)
            if unknown:  # one that cannot be evaluated
                number = self.fresh()
                return [
                    f"%s{number}_s7 = sld [smem:[#allocation20]]",
                    f"%p{number}_p3 = scmp.eq.s32.totalorder %s{number}_s7, 3",
                    f"%9 = vsyncadd (%p{number}_p3), [#allocation5], 0",
                ]
            return [*bundles, f"%9 = vwait.eq ({predicate}), [#allocation5], 1"]
        if kind == "if":
            condition, body = drawn
            bundles, predicate = self.condition(condition, counters)
            number = self.fresh()
            return [
                *bundles,
                f"%{number} = sbr.rel ({predicate}) target = $region{number}",
                *[""] * 4,
                *self.block(body, counters),
                ("", f"Start region {number}"),
            ]
        if kind == "loop":
            iterations, body = drawn
            number = self.fresh()
            now = f"%s{number + 1}_s1"
            return loop(
                iterations, *self.block(body, [*counters, now]), region=number, first=number
            )
        assert kind == "call"
        number = self.fresh()
        return [
            f"%s{number}_s8 = smov {SCALARS[drawn[0]]}",
            f"%700 = inlined_call %s{number}_s8 /* %k = custom-call(%a) */",
        ]


OPERAND = st.one_of(
    st.tuples(st.just("counter"), st.integers(0, 3)),
    st.tuples(st.just("scalar"), st.integers(0, 5)),
    st.tuples(st.just("number"), NUMBERS),
)
CONDITION = st.tuples(
    TESTS, OPERAND, OPERAND, st.sampled_from([-1, 1, 3, 7, 12, 1023]), st.booleans()
)
FLAG = st.tuples(st.sampled_from(["fixed", "slots"]), st.integers(0, 5), st.integers(2, 4))
SIMPLE = st.one_of(
    st.tuples(st.just("work"), st.sampled_from([0, 1, 30, 400])),
    st.tuples(st.just("set"), OPS, st.integers(0, 5), OPERAND, OPERAND),
    st.tuples(st.just("set"), st.sampled_from(["sadd.s32"]), st.integers(0, 5), OPERAND, OPERAND),
    st.tuples(st.just("choose"), CONDITION, st.integers(0, 5), OPERAND),
    st.tuples(st.just("store"), st.integers(0, 3), OPERAND),
    st.tuples(st.just("load"), st.integers(0, 5), st.integers(0, 3)),
    st.tuples(st.just("dma"), FLAG, SIZES, st.none() | CONDITION),
    st.tuples(st.just("wait"), FLAG, SIZES),
    st.tuples(st.just("transfer"), FLAG, SIZES, st.sampled_from([0, 100, 2000])),
)
DOUBT = st.tuples(st.just("doubt"), CONDITION, st.booleans())
CALL = st.tuples(st.just("call"), st.integers(0, 5))


def statements(depth, longest, extra):
    """Statements with loops up to `depth` deep; inner loops are short, so that both ways end."""
    simple = st.one_of(SIMPLE, *extra)
    if depth == 0:
        return st.lists(simple, min_size=1, max_size=4)
    inner = statements(depth - 1, max(longest // 4, 3), extra)
    nested = st.one_of(
        simple,
        st.tuples(st.just("loop"), st.integers(1, longest), inner),
        st.tuples(st.just("if"), CONDITION, inner),
    )
    return st.lists(nested, min_size=1, max_size=4)


def outermost(extra=()):
    """A program: one long loop around everything, and what follows it."""
    body = statements(2, 24, extra)
    return st.tuples(
        st.lists(NUMBERS, min_size=6, max_size=6),
        st.tuples(st.just("loop"), st.integers(20, 200), body),
        statements(0, 0, extra),
    )


def program(numbers, main, rest):
    """Bundles of a drawn program: it starts from given values, and stores them at its end."""
    start = [f"{name} = smov {value}" for name, value in zip(SCALARS, numbers, strict=True)]
    start += [f"%9 = sst [smem:{WORDS.format(place)}] {place}" for place in range(4)]
    end = [f"%9 = sst [smem:{WORDS.format(place)}] {name}" for place, name in enumerate(SCALARS, 8)]
    writer = Writer()
    return [*start, *writer.block([main, *rest], []), *end]


CALLEE = [
    "%s80_s8 = inlined_call_operand.<no memory space> [index: 0, kind: x]",
    "%s81_s9 = sand.u32 7, %s80_s8",
    *loop("%s81_s9", "%9 = sst [smem:[#allocation9]] %s2_s1"),
]


def run(bundles, callee):
    """The state of the machine after a program, or None if that takes too many steps."""
    engine = Engine(K, {}, MAX_STEPS, steady.replay)
    addresses = AddressMap()
    main = Program("main", 1, parse(listing(*bundles)), addresses)
    engine.programs["k"] = Program("k", 2, parse(listing(*callee, entry="k")), addresses)
    assert not main.listing.malformed
    try:
        end = steady.replay(engine, main, 0)
    except OutOfSteps:
        return None
    if any("step budget" in reason for reason in engine.reasons):
        return None
    tally = engine.tally
    return {
        "end": end,
        "memory": engine.mem,
        "flags": {number: flag.value for number, flag in engine.flags.items() if flag.value},
        "clocks": engine.clock_state(end),
        "outstanding": engine.outstanding,
        "blocks": {
            number: {index: count for index, count in blocks.items() if count}
            for number, blocks in tally.blocks.items()
        },
        "calls": tally.calls,
        "totals": (tally.steps, tally.hbm_read, tally.hbm_written, tally.dmas, tally.wait),
        "waits": tally.waits,
        "reasons": engine.reasons,
        "uncertain": engine.uncertain,
        "steps": engine.steps,
    }


def check(monkeypatch, drawn):
    """Runs a drawn program both ways; returns the share of steps that skipping saved."""
    bundles = program(*drawn)
    quick = run(bundles, CALLEE)
    with monkeypatch.context() as patch:
        patch.setattr(steady, "_skip", lambda *_: None)
        full = run(bundles, CALLEE)
    if full is None or quick is None:
        return 0.0
    steps = quick.pop("steps"), full.pop("steps")
    assert quick == full
    return 1 - steps[0] / steps[1]


EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@given(outermost())
@EXAMPLES
def test_skipping_leaves_the_machine_as_a_full_replay_does(monkeypatch, drawn):
    check(monkeypatch, drawn)


@given(outermost([DOUBT, CALL]))
@EXAMPLES
def test_skipping_keeps_doubts_and_calls(monkeypatch, drawn):
    check(monkeypatch, drawn)
