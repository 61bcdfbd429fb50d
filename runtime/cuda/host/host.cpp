// CUDA's threads on a processor: a fiber for each thread of a block. A kernel runs as on a device, but slowly; threads take
// turns only where they wait for each other, in an order that the caller chooses, so that a kernel which forgets to wait
// shows it. In some orders warps take turns where they wait, in others a warp runs ahead until it waits for its block. In
// some orders several blocks are alive at once and take turns where their threads wait, so that a kernel whose blocks
// count on running one after the other shows it.
//
// Shared memory is filled with ones (NaN) before each block. x86-64 and Linux; compiled with frame pointers.

#include "host.h"
#include <algorithm>
#include <map>
#include <string>
#include <sys/mman.h>
#include <tuple>
#include <utility>
#include <vector>

namespace host {

namespace {

// Where a thread waits: a line, and a hash of the calls that led to it. Two calls of one function, and two instances of
// one template, are different sites.
struct Site {
    const char* file = "";
    unsigned line = 0;
    uint64_t calls = 0;
};
bool operator==(const Site& left, const Site& right) { return left.calls == right.calls && left.line == right.line; }

// A copy that is under way, of a thread's group of that number.
struct Copy { void* to; const void* from; size_t bytes; unsigned group; };

// A thread's load or store of a pack of global memory. The accesses of a warp's threads that agree in the first three
// fields are one access of the warp.
struct Access {
    // The calls that led to the access, and the waits of the thread before it.
    uint64_t calls;
    unsigned waits;
    // The thread's accesses by the same calls since its last wait: the turn of a loop.
    unsigned turn;
    uintptr_t address; size_t bytes;
};

struct Fiber : Thread {
    void* stack_pointer = nullptr;
    char* stack = nullptr;
    Waits waits = Waits::Nothing;
    unsigned warp_mask = 0;
    Site site;
    bool done = false;
    // A copy is made when its thread waits for it. A thread that ends with copies under way is a fault: on a device they
    // arrive at any time, also in memory that holds something else by then.
    std::vector<Copy> copies;
    // How many groups of copies the thread has closed.
    unsigned groups = 0;
    // How often the thread has waited; and the waits and the turn of its next access, by the calls that lead to it.
    unsigned waited = 0;
    std::map<uint64_t, std::pair<unsigned, unsigned>> turns;
};

// A block that has begun and not ended.
struct Block : ThreadBlock {
    std::vector<Fiber> fibers;
    // Threads that have not ended.
    size_t left = 0;
    // One piece of shared memory for each place that declares some.
    std::vector<std::vector<char>> shared_memory;
    // The accesses of each warp, if they are counted.
    std::vector<Access> accesses[32];
};

// The most blocks that are alive at once.
constexpr unsigned MOST_ALIVE = 3;
Block alive[MOST_ALIVE];
void* scheduler = nullptr;
Body body;
// The bytes of shared memory that the launch has used, by the places that declare them.
std::vector<size_t> shared_bytes;
// Why a launch fails; empty if it does not.
std::string fault;
// How many blocks run at each end of the grid.
uint64_t corners = ~0ull;
// The sectors of 32 bytes that the accesses of the launch's warps touch, and the fewest that hold as many bytes.
struct Sectors { uint64_t touched, fewest; } sectors;

Fiber& own_fiber() { return *static_cast<Fiber*>(thread); }
Block& own_block() { return *static_cast<Block*>(block); }

extern "C" void host_switch(void** save, void* load);
asm(R"(
.text
.local host_switch
.type host_switch,@function
host_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");

void yield() { Fiber& own = own_fiber(); host_switch(&own.stack_pointer, scheduler); }

void enter() {
    body.run(body.kernel, body.words);
    Fiber& own = own_fiber();
    if (!own.copies.empty() && fault.empty())
        fault = "thread " + std::to_string(own.number) + " ends without a wait for its copies";
    own.done = true;
    yield();
    abort();
}

constexpr size_t STACK = 128 * 1024;

void prepare(Fiber& fiber) {
    if (!fiber.stack) {
        fiber.stack = (char*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fiber.stack == MAP_FAILED) abort();
    }
    // Stacks begin at different distances from a page, so that a cache holds the tops of all.
    const size_t distance = fiber.number % 64 * 64;
    void** top = (void**)(((uintptr_t)fiber.stack + STACK - distance) & ~15ull);
    *--top = nullptr;
    *--top = (void*)enter;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_pointer = top;
    fiber.done = false;
    fiber.waits = Waits::Nothing;
    fiber.copies.clear();
    fiber.groups = 0;
    fiber.waited = 0;
    fiber.turns.clear();
}

// Whether in this order a warp runs ahead of the others of its block until it waits for the block or ends.
bool runs_ahead(unsigned order) { return order % 2 == 1; }

// The order in which threads run: 0 is by number, 1 the reverse, others are shuffled by it. The threads of a warp that runs
// ahead follow one another.
std::vector<unsigned> turns(unsigned count, unsigned order) {
    std::vector<unsigned> turns(count);
    for (unsigned i = 0; i < count; i++) turns[i] = order == 1 ? count - 1 - i : i;
    uint32_t state = order * 2654435761u;
    for (unsigned i = count; order >= 2 && i > 1; i--) {
        state = state * 1664525u + 1013904223u;
        std::swap(turns[i - 1], turns[(state >> 8) % i]);
    }
    if (!runs_ahead(order)) return turns;
    // Warps are ordered by the first turn of any of their threads.
    std::vector<size_t> first((count + 31) / 32);
    for (size_t turn = turns.size(); turn-- > 0;) first[turns[turn] / 32] = turn;
    std::stable_sort(turns.begin(), turns.end(), [&](unsigned left, unsigned right) {
        return first[left / 32] < first[right / 32];
    });
    return turns;
}

std::string text_of(const Site& site) { return std::string(site.file) + ":" + std::to_string(site.line); }

// What a thread does that is not at a site at which others wait.
std::string text_of(const Fiber& fiber) {
    const std::string name = "thread " + std::to_string(fiber.number);
    if (fiber.done) return name + " has ended";
    return name + " waits at " + text_of(fiber.site) + (fiber.waits == Waits::Block ? " for its block" : " for its warp");
}

// Why threads of a group (a warp or a block) do not meet; empty if all wait at one site for that group.
std::string parted(const char* group, const Fiber* fibers, size_t count, const Fiber& waiting) {
    const auto at = [&] { return std::string("threads of a ") + group + " wait at " + text_of(waiting.site); };
    for (const Fiber* fiber = fibers; fiber < fibers + count; fiber++) {
        if (fiber->done || fiber->waits != waiting.waits) return at() + ", but " + text_of(*fiber);
        if (fiber->site == waiting.site) continue;
        const bool same_line = text_of(fiber->site) == text_of(waiting.site);
        return at() + " and at " + text_of(fiber->site) + (same_line ? ", called from two places" : "");
    }
    return "";
}

// Lets a warp go on if its threads all wait at one site. Whether they do.
bool release_warp(Block& block, size_t number) {
    const size_t count = std::min<size_t>(block.fibers.size() - 32 * number, 32);
    Fiber* const warp = &block.fibers[32 * number];
    const auto at_wait = [](const Fiber& fiber) { return fiber.waits == Waits::Warp; };
    const Fiber* waiting = std::find_if(warp, warp + count, at_wait);
    if (waiting == warp + count) return false;
    fault = parted("warp", warp, count, *waiting);
    const unsigned all = ~0u >> (32 - count);
    for (size_t i = 0; i < count && fault.empty(); i++)
        if ((warp[i].warp_mask & all) != all)
            fault = "the mask of a wait at " + text_of(warp[i].site) + " leaves out threads of the warp";
    if (!fault.empty()) return false;
    for (size_t i = 0; i < count; i++) warp[i].waits = Waits::Nothing;
    return true;
}

// Lets the warps go on whose threads all wait at one site. Whether there was one.
bool release_warps(Block& block) {
    bool released = false;
    for (size_t warp = 0; 32 * warp < block.fibers.size() && fault.empty(); warp++) released |= release_warp(block, warp);
    return released && fault.empty();
}

// Lets the block go on if all of its threads wait at one barrier. Whether they do.
bool release_block(Block& block) {
    auto& fibers = block.fibers;
    const auto at_barrier = [](const Fiber& fiber) { return fiber.waits == Waits::Block; };
    const auto waiting = std::find_if(fibers.begin(), fibers.end(), at_barrier);
    if (waiting == fibers.end()) return false;
    fault = parted("block", fibers.data(), fibers.size(), *waiting);
    if (!fault.empty()) return false;
    for (auto& fiber : fibers) fiber.waits = Waits::Nothing;
    return true;
}

// Counts the sectors of one access of a warp, given those of its threads in the order of their addresses.
void count_sectors(const Access* first, const Access* last) {
    uintptr_t sectors_end = 0, bytes_end = 0, bytes = 0;
    for (const Access* access = first; access < last; access++) {
        const uintptr_t end = access->address + access->bytes, sector_end = (end + 31) / 32;
        // Threads may touch the same bytes.
        if (sector_end > sectors_end) sectors.touched += sector_end - std::max(sectors_end, access->address / 32);
        if (end > bytes_end) bytes += end - std::max(bytes_end, access->address);
        sectors_end = std::max(sectors_end, sector_end), bytes_end = std::max(bytes_end, end);
    }
    sectors.fewest += (bytes + 31) / 32;
}

// Counts the sectors of a block that has ended.
void count_sectors(Block& block) {
    for (auto& accesses : block.accesses) {
        const auto key = [](const Access& access) { return std::tuple(access.waits, access.calls, access.turn); };
        std::sort(accesses.begin(), accesses.end(), [=](const Access& left, const Access& right) {
            return std::pair(key(left), left.address) < std::pair(key(right), right.address);
        });
        const Access *first = accesses.data(), *last = first, *const end = first + accesses.size();
        for (; first < end; first = last) {
            while (last < end && key(*last) == key(*first)) last++;
            count_sectors(first, last);
        }
        accesses.clear();
    }
}

// Begins the block with this number among all of the grid.
void begin(Block& block, uint64_t number) {
    block.index.x = number % grid_size.x;
    block.index.y = number / grid_size.x % grid_size.y;
    block.index.z = number / ((uint64_t)grid_size.x * grid_size.y);
    for (auto& accesses : block.accesses) accesses.clear();
    for (auto& memory : block.shared_memory) std::fill(memory.begin(), memory.end(), (char)0xff);
    for (size_t i = block_size.x; i < block.fibers.size(); i++) munmap(block.fibers[i].stack, STACK);
    block.fibers.resize(block_size.x);
    block.left = block.fibers.size();
    for (unsigned i = 0; i < block.fibers.size(); i++) {
        block.fibers[i].number = i;
        prepare(block.fibers[i]);
        block.fibers[i].index = {i % block_size.x, i / block_size.x % block_size.y, i / (block_size.x * block_size.y)};
    }
}

// Runs each of these threads until it waits or ends.
void run_threads(Block& own, const unsigned* turn, const unsigned* end) {
    for (; turn < end; turn++) {
        Fiber& fiber = own.fibers[*turn];
        if (fiber.done || fiber.waits != Waits::Nothing) continue;
        thread = &fiber;
        host_switch(&scheduler, fiber.stack_pointer);
        own.left -= fiber.done;
    }
}

// Runs the threads of a block until they wait, and lets those go on that have met. Whether the block goes on or has ended;
// it does neither where threads do not meet.
bool advance(Block& own, const std::vector<unsigned>& turns, bool ahead) {
    block = &own;
    const unsigned *turn = turns.data(), *const end = turn + turns.size();
    if (!ahead) run_threads(own, turn, end);
    while (ahead && turn < end && fault.empty()) {
        const unsigned* const first = turn;
        const unsigned warp = *first / 32;
        while (turn < end && *turn / 32 == warp) turn++;
        do run_threads(own, first, turn);
        while (fault.empty() && release_warp(own, warp));
    }
    if (!fault.empty()) return false;
    if (own.left == 0) return count_sectors(own), true;
    if (release_warps(own)) return true;
    return fault.empty() && release_block(own);
}

// A device's limit of the shared memory that a kernel declares.
constexpr size_t MOST_SHARED = 48 * 1024;

// Runs all blocks, so many of them at once. Whether they come to their end.
bool run_blocks(unsigned at_once, unsigned order) {
    const auto own = turns(block_size.x, order);
    const uint64_t count = (uint64_t)grid_size.x * grid_size.y * grid_size.z;
    uint64_t begun = 0;
    for (auto& block : alive) block.left = 0;
    do {
        for (unsigned i = 0; i < at_once; i++) {
            if (begun == corners && count - corners > corners) begun = count - corners;
            // Blocks come in any order on a device.
            if (alive[i].left == 0 && begun < count) begin(alive[i], order % 2 ? count - 1 - begun : begun), begun++;
            if (alive[i].left > 0 && !advance(alive[i], own, runs_ahead(order))) return false;
        }
    } while (begun < count || std::any_of(alive, alive + at_once, [](const Block& block) { return block.left > 0; }));
    return true;
}

}  // namespace

Thread* thread = nullptr;
ThreadBlock* block = nullptr;
Index block_size, grid_size;

const char* run_grid(const Body& own, const unsigned* sizes, unsigned order) {
    grid_size = {sizes[0], sizes[1], sizes[2]};
    block_size = {sizes[3], 1, 1};
    corners = sizes[4] ? sizes[4] : ~0ull;
    body = own;
    fault.clear();
    shared_bytes.clear();
    sectors = {};
    if (!run_blocks(order < 2 ? 1 : 2 + order % 2, order)) return fault.c_str();
    size_t shared = 0;
    for (size_t bytes : shared_bytes) shared += bytes;
    if (shared <= MOST_SHARED) return nullptr;
    fault = "declares " + std::to_string(shared) + " bytes of shared memory: a block has " + std::to_string(MOST_SHARED);
    return fault.c_str();
}

// A hash of the calls that led here, from the stack's frames.
__attribute__((always_inline)) inline uint64_t hash_of_calls() {
    uint64_t calls = 0;
    for (void** frame = (void**)__builtin_frame_address(0); frame; frame = (void**)frame[0])
        calls = (calls ^ (uint64_t)frame[1]) * 0x9e3779b97f4a7c15ull;
    return calls;
}

void wait(Waits waits, unsigned mask, const char* file, unsigned line) {
    Fiber& own = own_fiber();
    own.site = {file, line, hash_of_calls()};
    own.warp_mask = mask;
    own.waited++;
    own.waits = waits;
    yield();
}

// Whether an address lies in the block's shared memory or on the thread's own stack, so not in global memory.
bool is_of_block(const void* address) {
    const auto within = [=](const char* start, size_t size) { return (uintptr_t)address - (uintptr_t)start < size; };
    if (within(own_fiber().stack, STACK)) return true;
    for (const auto& memory : own_block().shared_memory)
        if (within(memory.data(), memory.size())) return true;
    return false;
}

void touch(const void* pack, size_t bytes) {
    if (is_of_block(pack)) return;
    const uintptr_t address = (uintptr_t)pack;
    const uint64_t calls = hash_of_calls();
    Fiber& own = own_fiber();
    auto& [waits, turn] = own.turns[calls];
    if (waits != own.waited) waits = own.waited, turn = 0;
    own_block().accesses[own.number / 32].push_back({calls, waits, turn++, address, bytes});
}

void check_global(const void* to) {
    if (is_of_block(to)) fault = "a pack is stored as in global memory, and its place is in shared memory";
}

void keep_copy(void* to, const void* from, size_t bytes) {
    if (((uintptr_t)to | (uintptr_t)from) % bytes != 0) __builtin_trap();
    Fiber& own = own_fiber();
    own.copies.push_back({to, from, bytes, own.groups});
}

void close_copies() { own_fiber().groups++; }

// Makes the copies of the groups before one.
void make_copies_before(unsigned group) {
    auto& copies = own_fiber().copies;
    const auto later = std::find_if(copies.begin(), copies.end(), [=](const Copy& copy) { return copy.group >= group; });
    for (auto copy = copies.begin(); copy != later; copy++)
        copy->from ? (void)memcpy(copy->to, copy->from, copy->bytes) : (void)memset(copy->to, 0, copy->bytes);
    copies.erase(copies.begin(), later);
}
void wait_for_copies() { make_copies_before(own_fiber().groups + 1); }

void wait_for_copies_but(unsigned last) {
    const unsigned groups = own_fiber().groups;
    make_copies_before(groups > last ? groups - last : 0);
}

void* shared_memory(size_t place, size_t size) {
    auto& pieces = own_block().shared_memory;
    if (pieces.size() <= place) pieces.resize(place + 1);
    if (shared_bytes.size() <= place) shared_bytes.resize(place + 1);
    shared_bytes[place] = size;
    auto& memory = pieces[place];
    // Types are aligned to 256 bytes at most.
    if (memory.size() < size + 255) memory.resize(size + 255, (char)0xff);
    return (void*)((uintptr_t)(memory.data() + 255) & ~(uintptr_t)255);
}

size_t next_place() {
    static size_t places = 0;
    return places++;
}

// The sectors of the last launch; zeros if they are not counted.
extern "C" __attribute__((visibility("default"))) void host_sectors(uint64_t* to) {
    to[0] = sectors.touched, to[1] = sectors.fewest;
}

// Ends the block whose thread touched memory that it may not. The handler of the signal lets the thread go on here.
extern "C" __attribute__((visibility("default"))) void host_abandon() {
    fault = "an access to memory";
    for (Fiber& fiber : own_block().fibers) fiber.done = true, fiber.waits = Waits::Nothing;
    yield();
    abort();
}

}  // namespace host

