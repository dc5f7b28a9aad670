"""The machine's own instructions that numba has no name for, each in one place.

PTX is NVIDIA's virtual instruction set; numbers of sections are those of the PTX ISA 9.0 manual.  Each function here
becomes one instruction inside a kernel.  The emulator performs all of them (`gpu/emulator/`), the simulator those that
need no tensor core.  A *fragment* is what one lane holds of a small matrix that the 32 lanes of a warp share; lanes are
numbered 0 to 31, and in the drawings  g = lane // 4  and  q = lane % 4.

bfloat16 numbers travel in pairs: a uint32 holds the one with the smaller index in its lower half.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import RequireLiteralValue
from numba.cuda.extending import intrinsic

F32, I32, U32, U64 = types.float32, types.int32, types.uint32, types.uint64
LETTER = {F32: "f", I32: "r", U32: "r", U64: "l"}  # of a register, in LLVM's inline assembly
FIELD = {F32: ir.FloatType(), I32: ir.IntType(32), U32: ir.IntType(32), U64: ir.IntType(64)}
MEMORY = "~{memory}"  # what tells LLVM that memory changes


def instruction(text, results, operands, effect=None):
    """Signature and code of one PTX instruction: results and operands are numba types, all in registers.

    effect: None for a pure function of its operands; "" where all lanes must meet; MEMORY where memory changes.
    """

    def generate(context, builder, _signature, arguments):
        fields = [FIELD[t] for t in results]
        whole = fields[0] if len(fields) == 1 else ir.LiteralStructType(fields) if fields else ir.VoidType()
        letters = [f"={LETTER[t]}" for t in results] + [LETTER[t] for t in operands]
        assembly = ir.InlineAsm(
            ir.FunctionType(whole, [FIELD[t] for t in operands]),
            text,
            ",".join(letters + ([effect] if effect else [])),
            side_effect=effect is not None,
        )
        made = builder.call(assembly, arguments)
        if len(results) < 2:
            return made if results else context.get_dummy_value()
        return cgutils.pack_array(builder, [builder.extract_value(made, i) for i in range(len(results))])

    if len(results) > 1:
        return types.UniTuple(results[0], len(results))(*operands), generate
    return (results[0] if results else types.void)(*operands), generate


def element(context, builder, array_type, array, index_type, index):
    """LLVM pointer to flat element `index` of a contiguous array."""
    widen = builder.sext if index_type.signed else builder.zext
    wide = widen(index, ir.IntType(64)) if index_type.bitwidth < 64 else index
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [wide])


# Bits.


@intrinsic
def as_float(typing, bits):
    """The float32 whose bits are the given uint32."""
    return F32(U32), lambda context, builder, signature, args: builder.bitcast(args[0], FIELD[F32])


@intrinsic
def as_bits(typing, value):
    """The bits of a float32 as uint32."""
    return U32(F32), lambda context, builder, signature, args: builder.bitcast(args[0], FIELD[U32])


@intrinsic
def pack_bf16(typing, low, high):
    """Two float32 rounded to bfloat16 (to nearest, ties to even), low in the lower half of a uint32.  9.7.9.21 cvt"""
    return instruction("cvt.rn.bf16x2.f32 $0, $2, $1;", [U32], [F32, F32])


@intrinsic
def to_tf32(typing, value):
    """A float32 rounded to TF32 (10 bits of mantissa, ties away from zero), as the bits of a float32.  9.7.9.21 cvt"""
    return instruction("cvt.rna.tf32.f32 $0, $1;", [U32], [F32])


# Arithmetic.


@intrinsic
def exp2(typing, value):
    """2 to the power of a float32, at most 2 units in the last place off; 0 for -inf.  9.7.3.22 ex2.approx.ftz"""
    return instruction("ex2.approx.ftz.f32 $0, $1;", [F32], [F32])


@intrinsic
def divide(typing, numerator, denominator):
    """A float32 quotient, at most 2 units in the last place off; |denominator| 2^-126 to 2^126.  9.7.3.8 div.approx"""
    return instruction("div.approx.ftz.f32 $0, $1, $2;", [F32], [F32, F32])


@intrinsic
def dp4a(typing, a, b, c):
    """c + a0 b0 + a1 b1 + a2 b2 + a3 b3 of the four signed bytes in each of a and b; all int32.  9.7.1.23 dp4a"""
    return instruction("dp4a.s32.s32 $0, $1, $2, $3;", [I32], [I32, I32, I32])


# 16 bytes at once.


@intrinsic
def load4(typing, array, index):
    """Elements index .. index + 3 of a contiguous array of 4-byte numbers, in one 16-byte load.

    index counts elements of the flattened array and must be a multiple of 4 where the array begins at one.
    """

    def generate(context, builder, signature, args):
        where = element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        four = ir.VectorType(where.type.pointee, 4)
        loaded = builder.load(builder.bitcast(where, four.as_pointer()), align=16)
        return cgutils.pack_array(builder, [builder.extract_element(loaded, FIELD[I32](k)) for k in range(4)])

    return types.UniTuple(array.dtype, 4)(array, index), generate


@intrinsic
def store4(typing, array, index, a, b, c, d):
    """Write a, b, c, d to elements index .. index + 3, in one 16-byte store; see `load4`."""

    def generate(context, builder, signature, args):
        where = element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        four = ir.VectorType(where.type.pointee, 4)
        whole = ir.Constant(four, ir.Undefined)
        for k in range(4):
            whole = builder.insert_element(whole, args[2 + k], FIELD[I32](k))
        builder.store(whole, builder.bitcast(where, four.as_pointer()), align=16)
        return context.get_dummy_value()

    return types.void(array, index, *(array.dtype,) * 4), generate


# Asynchronous copies from global to shared memory (sm_80 and later).  They pass no register, so a tile can travel while
# the previous one is used.  A thread's copies form a group at `commit`; after `wait(n)` at most n of its groups are
# still under way, and after a barrier all threads see what has arrived.


@intrinsic
def copy16(typing, shared, index, source, start, num_bytes):
    """Begin to copy num_bytes (0 to 16) from source[start] to shared[index], and zeros up to 16 bytes.

    Both places must be multiples of 16 bytes; indices count elements of the flattened arrays.  9.7.9.25.3.1 cp.async
    """
    copy, generate_copy = instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", [], [U32, U64, U32], MEMORY)
    _, generate_address = instruction(TO_SHARED, [U32], [U64])

    def generate(context, builder, signature, args):
        types_, wide = signature.args, FIELD[U64]
        to = builder.ptrtoint(element(context, builder, types_[0], args[0], types_[1], args[1]), wide)
        origin = builder.ptrtoint(element(context, builder, types_[2], args[2], types_[3], args[3]), wide)
        to = generate_address(context, builder, None, [to])
        return generate_copy(context, builder, copy, [to, origin, args[4]])

    return types.void(shared, index, source, start, U32), generate


@intrinsic
def commit(typing):
    """End a group of `copy16`.  9.7.9.25.3.2 cp.async.commit_group"""
    return instruction("cp.async.commit_group;", [], [], MEMORY)


@intrinsic
def wait(typing, num_groups):
    """Wait until at most num_groups (a literal number) of this thread's groups are under way.  9.7.9.25.3.3"""
    if not isinstance(num_groups, types.IntegerLiteral):
        raise RequireLiteralValue(num_groups)
    made, generate = instruction(f"cp.async.wait_group {num_groups.literal_value};", [], [], MEMORY)
    return types.void(num_groups), lambda context, builder, _, args: generate(context, builder, made, [])


# Matrices of 8 x 8 numbers of 2 bytes, from shared memory into fragments.

TO_SHARED = "{ .reg .u64 t; cvta.to.shared.u64 t, $1; cvt.u32.u64 $0, t; }"


@intrinsic
def shared_address(typing, shared, index):
    """Where element `index` of a flattened shared array is: a uint32 in bytes, for the ldmatrix functions."""
    made, generate_address = instruction(TO_SHARED, [U32], [U64])

    def generate(context, builder, signature, args):
        where = element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        return generate_address(context, builder, made, [builder.ptrtoint(where, FIELD[U64])])

    return U32(shared, index), generate


def _ldmatrix(count, transposed):
    names = ", ".join(f"${i}" for i in range(count))
    kind = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    return instruction(f"{kind} {{{names}}}, [${count}];", [U32] * count, [U32], MEMORY)


@intrinsic
def ldmatrix4(typing, address):
    """Four 8 x 8 matrices of 2-byte numbers: lane 8 i + r gives the address of row r of matrix i (16 bytes).

    Lane (g, q) receives in result i the pair (row g, columns 2q and 2q + 1) of matrix i:

                columns  0 1   2 3   4 5   6 7
        row 0   lanes     0     1     2     3
        row 1             4     5     6     7
        ...
        row 7            28    29    30    31              9.7.14.5.15 ldmatrix
    """
    return _ldmatrix(4, transposed=False)


@intrinsic
def ldmatrix4_transposed(typing, address):
    """As `ldmatrix4`, but lane (g, q) receives (rows 2q and 2q + 1, column g), as of a matrix stored by columns."""
    return _ldmatrix(4, transposed=True)


@intrinsic
def ldmatrix2(typing, address):
    """As `ldmatrix4` for two matrices; lanes 0 to 15 give the addresses."""
    return _ldmatrix(2, transposed=False)


@intrinsic
def ldmatrix2_transposed(typing, address):
    """As `ldmatrix4_transposed` for two matrices; lanes 0 to 15 give the addresses."""
    return _ldmatrix(2, transposed=True)


# Tensor cores: D = A B + C for a whole warp.  The accumulator of all three is 16 x 8, and lane (g, q) holds
#     c0, c1: row g,     columns 2q, 2q + 1
#     c2, c3: row g + 8, columns 2q, 2q + 1


@intrinsic
def mma_bf16(typing, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """D (16 x 8, float32) = A (16 x 16, bfloat16) B (16 x 8, bfloat16) + C.  Lane (g, q) holds

        A   a0: row g,     columns 2q, 2q + 1          a2: row g,     columns 2q + 8, 2q + 9
            a1: row g + 8, columns 2q, 2q + 1          a3: row g + 8, columns 2q + 8, 2q + 9
        B   b0: rows 2q, 2q + 1, column g              b1: rows 2q + 8, 2q + 9, column g

    so A stored by rows comes from `ldmatrix4` of its four quarters, top left, bottom left, top right, bottom right; and
    B stored by columns from `ldmatrix2`, stored by rows from `ldmatrix2_transposed`.  9.7.14.5.8 mma.m16n8k16
    """
    text = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    return instruction(text + OPERANDS, [F32] * 4, [U32] * 6 + [F32] * 4, "")


@intrinsic
def mma_tf32(typing, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """D (16 x 8, float32) = A (16 x 8, TF32) B (8 x 8, TF32) + C; see `to_tf32`.  Lane (g, q) holds

    A   a0: row g, column q      a1: row g + 8, column q      a2: row g, column q + 4     a3: row g + 8, column q + 4
    B   b0: row q, column g      b1: row q + 4, column g                               9.7.14.5.7 mma.m16n8k8
    """
    text = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
    return instruction(text + OPERANDS, [F32] * 4, [U32] * 6 + [F32] * 4, "")


@intrinsic
def mma_int8(typing, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """D (16 x 8, int32) = A (16 x 32, int8) B (32 x 8, int8) + C, four bytes in a uint32.  Lane (g, q) holds

    A   a0: row g,     columns 4q .. 4q + 3        a2: row g,     columns 4q + 16 .. 4q + 19
        a1: row g + 8, columns 4q .. 4q + 3        a3: row g + 8, columns 4q + 16 .. 4q + 19
    B   b0: rows 4q .. 4q + 3, column g            b1: rows 4q + 16 .. 4q + 19, column g    9.7.14.5.10 mma.m16n8k32
    """
    text = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
    return instruction(text + OPERANDS, [I32] * 4, [U32] * 6 + [I32] * 4, "")


OPERANDS = "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
