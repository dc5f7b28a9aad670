"""Where the emulator keeps what it knows: layouts shared by the compiled kernel, the scheduler and the checks.

One record of 64 words of 8 bytes for each CUDA thread, and one context of words for each core that runs blocks.
"""

RECORD = 64  # words of a thread's record
STACK_POINTER, STATE, TID_X, TID_Y, TID_Z, LINEAR, OPERATION, MASK, SITE, STACK_LOW = range(10)
COPIES, FIRST_OPEN, GROUP, ACCESSES = range(10, 14)  # asynchronous copies begun, done, groups committed; accesses left
CONTEXT = 14
MAIL = 32  # from here 64 half words of 4 bytes: what a lane hands to the warp, and from RESULT what it receives
RESULT = 24

STACK = 1 << 16  # bytes of a thread's stack
READY, AT_WARP, AT_BLOCK, DONE, FAILED = range(5)  # states of a thread

# Operations for which lanes (states AT_WARP) or threads (AT_BLOCK) wait for each other.
SYNC_WARP, SHUFFLE, VOTE, MATCH_ANY, MATCH_ALL = range(5)
LDMATRIX, LDMATRIX_TRANSPOSED = 5, 6  # mail: address, number of matrices
MMA_BF16, MMA_TF32, MMA_INT8 = 7, 8, 9
BARRIER, BARRIER_COUNT, BARRIER_AND, BARRIER_OR = range(10, 14)
OPERATION_NAMES = (
    *("syncwarp", "shfl_sync", "vote_sync", "match_any_sync", "match_all_sync", "ldmatrix", "ldmatrix"),
    *("mma", "mma", "mma", "syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or"),
)

# Context of a core.
RANGES, NUM_RANGES, REPORT, SHADOW, SHARED, WARP_EPOCHS, EPOCH, PENDING, CHECKED = range(9)
CONTEXT_WORDS = 16
RANGE = 3  # words: first byte, byte behind the last, what it is (an argument's number, or SHARED_RANGE)
SHARED_RANGE = -1
SHADOW_WORDS = 6  # of each byte of shared memory: epoch, thread and warp epoch of its last write, then of its last read
MAX_COPIES = 256  # asynchronous copies of a thread under way
PENDING_WORDS = 4  # of each: to, from, bytes, group

# Report of a fault: kind, thread, site, and what the kind needs.
REPORT_WORDS = 8
(NO_FAULT, OUTSIDE, MISALIGNED, RACE, STUCK, DIVERGED, LOST_LANE, NOT_IN_MASK, ENDLESS, TOO_MANY_COPIES) = range(10)
READ, WRITE, ATOMIC = range(3)  # kinds of access
