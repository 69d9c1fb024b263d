"""Proofs from PTX: each way in which a write can hide from the reader, and code that must not hide a proof."""

from pathlib import Path

import pytest

from gcr.kernels import Access, Form, Kind, inspect_file

READ, WRITTEN, UNKNOWN = Access.READ_ONLY, Access.WRITTEN, Access.UNKNOWN
LOADS = "ld.param.u64 %p, [p]; ld.param.u64 %q, [q]; cvta.to.global.u64 %gp, %p; cvta.to.global.u64 %gq, %q;"


def inspected(text: str, tmp_path: Path, *, head: str = ".address_size 64"):
    path = tmp_path / "file.ptx"
    path.write_text(f"// made by hand\n.version 8.5\n.target sm_90a, debug\n{head}\n{text}")
    (image,) = inspect_file(path)
    return image


def accesses(body: str, tmp_path: Path, parameters: str = ".param .u64 p, .param .u64 q") -> list[Access | None]:
    image = inspected(f".visible .entry k(\n{parameters}\n)\n.maxntid 128, 1, 1\n{{\n{body}\n}}\n", tmp_path)
    (kernel,) = image.kernels
    return [argument.access for argument in kernel.arguments]


ONLY_READ = {
    "nothing": "ret;",
    "loads": LOADS + "ld.global.nc.f32 %f1, [%gp+16]; ld.global.v4.u32 {%a,%b,%c,%d}, [%gq];",
    "addresses in steps": LOADS + "mad.lo.s64 %x, %i, 4, %gp; shl.b64 %y, %x, 0; ld.global.u32 %r, [%y];",
    "what was loaded is stored": LOADS + "ld.u64 %v, [%p]; st.shared.u64 [%s], %v;",
    "a pointer found in memory is written": LOADS + "ld.u64 %v, [%p]; st.u32 [%v], 1; red.add.u32 [%v], 1;",
    "compared": LOADS + "setp.eq.s64 %t, %p, %q; @%t bra $L1; $L1: ret;",
    "copied from": LOADS
    + "cp.async.ca.shared.global [%s], [%gp], 16; cp.async.bulk.shared::cta.global [%s], [%gq], 16;",
    "overwritten by an atomic's result": LOADS + "mov.u64 %x, %p; atom.shared.exch.b64 %x, [%s], 1;",
    "prefetched": LOADS + "prefetch.global.L2 [%gp]; prefetchu.L1 [%q];",
    "written only in a comment": LOADS + "// st.u32 [%p], 1;\n/* st.u32 [%q], 1; */",
    "written only in a pragma": LOADS + '.pragma "st.u32 [%p], 1;"; ret;',
    "with line numbers": ".loc 1 2 3\n" + LOADS + ".loc 1 2 3, function_name $L__info_string0, inlined_at 1 4 5\nret;",
    "with scopes and labels": "{ // callseq\n.reg .b32 t;\n" + LOADS + "}\n$L__1: ld.global.u32 %r, [%gp];",
}


@pytest.mark.parametrize("body", ONLY_READ.values(), ids=ONLY_READ.keys())
def test_reading_is_proven(body: str, tmp_path: Path) -> None:
    assert accesses(body, tmp_path) == [READ, READ]


WRITES_P = {
    "a store": "st.global.f32 [%gp], %f;",
    "a store through the generic address": "st.u32 [%p+4], 1;",
    "a store under a predicate": "@!%t st.global.u32 [%gp], 1;",
    "a store after a label": "$L__BB0_1: st.global.u32 [%gp], 1;",
    "a store after another statement's scope": "{ .reg .u32 t; } st.global.u32 [%gp], 1;",
    "a store after a line number": ".loc 1 2 3 st.global.u32 [%gp], 1;",
    "a store without a space": "st.u32[%p],1;",
    "a store after a tab": "st.u32\t[%p],\t1;",
    "a store over lines": "st.u32\n[\n%p\n]\n,\n1\n;",
    "a store of several": "st.global.v2.u32 [%gp], {%a, %b};",
    "a store before the address is computed": "st.u32 [%late], 1; add.s64 %late, %p, 4;",
    "a register without a percent sign": "mov.u64 plain, %p; st.u32 [plain], 1;",
    "halves put together": "mov.b64 {%lo, %hi}, %p; mov.b64 %x, {%lo, %hi}; st.u32 [%x], 1;",
    "a choice": "selp.b64 %x, %p, 0, %t; st.u32 [%x], 1;",
    "another lane's": "shfl.sync.idx.b32 %x|%t, %p, 0, 31, -1; st.u32 [%x], 1;",
    "an atomic": "atom.global.add.u32 %r, [%gp], 1;",
    "a reduction": "red.global.add.u32 [%gp], 1;",
    "a bulk copy": "cp.async.bulk.global.shared::cta.bulk_group [%gp], [%s], 16;",
    "the barrier of a copy": "cp.async.bulk.shared::cta.global.mbarrier [%s], [%x], 16, [%p];",
    "a matrix": "wmma.store.d.sync.row.m16n16k16.f32 [%gp], {%a}, 16;",
}


@pytest.mark.parametrize("body", WRITES_P.values(), ids=WRITES_P.keys())
def test_a_write_is_seen(body: str, tmp_path: Path) -> None:
    assert accesses(LOADS + body, tmp_path) == [WRITTEN, READ]


HIDES_P = {
    "stored": "st.global.u64 [%z], %p;",
    "stored to local memory": "st.local.u64 [%depot], %gp;",
    "stored among others": "st.global.v2.u64 [%z], {%a, %p};",
    "exchanged": "atom.global.exch.b64 %old, [%z], %p;",
    "passed to a function": "{ .param .b64 param0; st.param.b64 [param0+0], %p; call.uni f, (param0); }",
    "passed in a register": "call (%r), f, (%p);",
    "used by an instruction of tomorrow": "frob.global.u64 %x, [%p];",
    "used by a matrix unit": "tcgen05.st.sync [%p], %x;",
    "its own address taken": "mov.u64 %x, p;",
    "its own address converted": "cvta.param.u64 %x, p;",
}


@pytest.mark.parametrize("body", HIDES_P.values(), ids=HIDES_P.keys())
def test_what_gets_out_of_sight_is_unknown(body: str, tmp_path: Path) -> None:
    assert accesses(LOADS + body, tmp_path) == [UNKNOWN, READ]


HIDES_ALL = {
    "a directive of tomorrow": ".frob 1 st.u32 [%p], 1;",
    "a load beyond the argument": "ld.param.u64 %x, [p+8];",
    "a load of more than the argument": "ld.param.v2.u64 {%x, %y}, [p];",
    "a load before the argument": "ld.param.u64 %x, [q+-8];",
    "a load of no type": "ld.param %x, [p];",
}


@pytest.mark.parametrize("body", HIDES_ALL.values(), ids=HIDES_ALL.keys())
def test_what_cannot_be_told_apart_makes_all_unknown(body: str, tmp_path: Path) -> None:
    assert accesses(LOADS + body, tmp_path) == [UNKNOWN, UNKNOWN]


def test_a_structure_is_written_if_a_pointer_in_it_is(tmp_path: Path) -> None:
    parameters = ".param .align 8 .b8 s[24], .param .align 8 .b8 t[24]"
    body = "ld.param.v2.u64 {%a, %b}, [s+8]; ld.param.u64 %c, [t]; ld.u32 %r, [%c]; st.u32 [%b], %r;"
    assert accesses(body, tmp_path, parameters) == [WRITTEN, READ]


def test_arguments_stand_where_alignment_puts_them(tmp_path: Path) -> None:
    parameters = (
        ".param .u8 a, .param .u64 .ptr .global .align 16 b, .param .align 16 .b8 c[3], .param .f64 d, "
        ".param .f32 e, .param .texref f, .param .u64 .ptr .shared g, .param .b32 h[5]"
    )
    image = inspected(f".entry k({parameters}) {{ ret; }}", tmp_path)
    assert [(each.offset, each.size, each.kind) for each in image.kernels[0].arguments] == [
        (0, 1, Kind.VALUE),
        (8, 8, Kind.POINTER),
        (16, 3, Kind.VALUE),
        (24, 8, Kind.VALUE),
        (32, 4, Kind.VALUE),
        (40, 8, Kind.OBJECT),
        (48, 8, Kind.SCRATCH),
        (56, 20, Kind.OPAQUE),
    ]
    assert image.kernels[0].argument_bytes == 76


def test_functions_and_declarations_are_no_kernels(tmp_path: Path) -> None:
    text = """
        .extern .func (.param .b32 r) g (.param .b64 p);
        .visible .func f (.param .b64 p) { st.u32 [p], 1; ret; }
        .extern .entry elsewhere (.param .u64 p);
        .weak .entry one { { ret; } }
        .visible .entry two () .minnctapersm 2 { ret; }
    """
    image = inspected(text, tmp_path)
    assert [kernel.name for kernel in image.kernels] == ["one", "two"]


@pytest.mark.parametrize("head", ["", ".address_size 32"])
def test_32_bit_ptx_is_not_read(head: str, tmp_path: Path) -> None:
    image = inspected(".entry k(.param .u32 p) { st.u32 [p], 1; }", tmp_path, head=head)
    assert (image.form, image.kernels) == (Form.UNREAD, ())
