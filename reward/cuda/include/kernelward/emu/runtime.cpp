// The emulator's scheduler: the threads of a block are fibers, switched at barriers and warp-level operations.
#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <stdexcept>
#include <cstring>

#include "kernelward/emu/state.h"

#define KW_BUILTIN __attribute__((section("kw_builtin")))
KW_BUILTIN uint3 threadIdx = {0, 0, 0};
KW_BUILTIN uint3 blockIdx = {0, 0, 0};
KW_BUILTIN dim3 blockDim(1, 1, 1);
KW_BUILTIN dim3 gridDim(1, 1, 1);

extern "C" __attribute__((visibility("hidden"))) void kw_switch(void** save, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.hidden kw_switch
.globl kw_switch
.type kw_switch,@function
kw_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kw_switch,.-kw_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.hidden kw_switch
.globl kw_switch
.type kw_switch,%function
kw_switch:
  stp x29,x30,[sp,#-160]!
  stp x19,x20,[sp,#16]
  stp x21,x22,[sp,#32]
  stp x23,x24,[sp,#48]
  stp x25,x26,[sp,#64]
  stp x27,x28,[sp,#80]
  stp d8,d9,[sp,#96]
  stp d10,d11,[sp,#112]
  stp d12,d13,[sp,#128]
  stp d14,d15,[sp,#144]
  mov x2,sp
  str x2,[x0]
  mov sp,x1
  ldp x19,x20,[sp,#16]
  ldp x21,x22,[sp,#32]
  ldp x23,x24,[sp,#48]
  ldp x25,x26,[sp,#64]
  ldp x27,x28,[sp,#80]
  ldp d8,d9,[sp,#96]
  ldp d10,d11,[sp,#112]
  ldp d12,d13,[sp,#128]
  ldp d14,d15,[sp,#144]
  ldp x29,x30,[sp],#160
  ret
.size kw_switch,.-kw_switch
)");
#else
#error "the CPU emulator switches fibers on x86-64 and aarch64 only"
#endif

// Calls what may use vector registers from a hook, which may not (registers.h). Here and not beside the hooks, which are
// compiled as if the processor had none. The compiler may leave out the alignment of the stack around a call to what it
// knows not to need it (-fipa-stack-alignment).
#ifdef KW_OWN_HOOKS
#ifdef __AVX__
#define KW_SAVE(N) "vmovaps %ymm" #N "," #N "*32(%rsp)\n"
#define KW_RESTORE(N) "vmovaps " #N "*32(%rsp),%ymm" #N "\n"
#else
#define KW_SAVE(N) "movaps %xmm" #N "," #N "*32(%rsp)\n"
#define KW_RESTORE(N) "movaps " #N "*32(%rsp),%xmm" #N "\n"
#endif
#define KW_EACH_VECTOR(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
asm(".text\n"
    ".hidden kw_keeping_vectors\n"
    ".globl kw_keeping_vectors\n"
    ".type kw_keeping_vectors,@function\n"
    "kw_keeping_vectors:\n"
    "pushq %rbp\n"
    "movq %rsp,%rbp\n"
    "subq $512,%rsp\n"
    "andq $-32,%rsp\n" KW_EACH_VECTOR(KW_SAVE) "call *%rsi\n" KW_EACH_VECTOR(KW_RESTORE)
    "leave\n"
    "ret\n"
    ".size kw_keeping_vectors,.-kw_keeping_vectors\n");
#endif

namespace kw {
namespace emu {

Runtime rt;
Watch watch = Watch::kNothing;
uint64_t block_serial = 1;

static uint64_t draw() {  // splitmix64
  uint64_t z = (rt.random += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

int poison_byte() { return rt.variant.poison < 0 ? 0 : rt.variant.poison; }
unsigned lane() { return unsigned(rt.current) & 31u; }
unsigned live_lanes() { return rt.warp[rt.current >> 5].alive; }
void* warp_scratch() { return rt.warp[rt.current >> 5].scratch; }
void* dynamic_shared() { return rt.dynamic; }
size_t dynamic_shared_bytes() { return rt.dynamic_bytes; }

std::string where() {
  auto three = [](unsigned x, unsigned y, unsigned z) {
    return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
  };
  return std::string(" in kernel ") + rt.kernel + ", block " + three(blockIdx.x, blockIdx.y, blockIdx.z) + ", thread " +
         three(threadIdx.x, threadIdx.y, threadIdx.z);
}

// ---- fibers

static void thread_main();

static void rewind(Fiber& f) {
  uintptr_t top = (uintptr_t(f.stack) + kStack - 64 - size_t(&f - rt.fibers) % 61 * 320) & ~uintptr_t(15);
  void** frame = reinterpret_cast<void**>(top);
#if defined(__x86_64__)
  *--frame = nullptr;
  *--frame = reinterpret_cast<void*>(&thread_main);
  for (int i = 0; i < 6; i++) *--frame = nullptr;
#else
  frame -= 20;
  std::memset(frame, 0, 160);
  frame[1] = reinterpret_cast<void*>(&thread_main);
#endif
  f.sp = frame;
}

static Fiber* take_fiber() {
  if (!rt.free_fibers.empty()) {
    Fiber* f = rt.free_fibers.back();
    rt.free_fibers.pop_back();
    return f;
  }
  Fiber& f = rt.fibers[rt.stacks_used];
  f.stack = rt.stacks + size_t(rt.stacks_used++) * kStack;
  mprotect(f.stack, kPage, PROT_NONE);
  rewind(f);
  return &f;
}

// After an error the fibers hold half-run threads: start them afresh.
static void reset_fibers() {
  rt.free_fibers.clear();
  for (int i = 0; i < rt.stacks_used; i++) {
    rewind(rt.fibers[i]);
    rt.free_fibers.push_back(&rt.fibers[i]);
  }
}

// Each thread's stack is in a page of its own, and far from the cache: what runs soon is fetched now.
static void fetch(int position) {
  if (position >= rt.end || rt.wait[rt.order[position]] != Wait::kReady) return;
  const char* stack = static_cast<char*>(rt.fiber_of[rt.order[position]]->sp);
  for (int line = 0; line < 4; line++) __builtin_prefetch(stack + 64 * line);
}

// Where a suspended thread of a sweep or a step hands over to: the next one that can run, or the scheduler.
static void* successor() {
  while (rt.at + 1 < rt.end) {
    int t = rt.order[++rt.at];
    if (rt.wait[t] != Wait::kReady) continue;
    fetch(rt.at + 2);
    return rt.fiber_of[t]->sp;
  }
  if (watch == Watch::kTime)
    if (Fiber* f = timed_next()) return f->sp;
  return rt.main_sp;
}

__attribute__((noinline)) void suspend() {
  rt.switches++;
  Fiber* f = rt.fiber;
  int t = rt.current;
  kw_switch(&f->sp, successor());
  threadIdx = rt.index[t];
  rt.current = t;
  rt.fiber = f;
  rt.spins = 0;
}

void resume(Fiber* f) {
  rt.fiber = f;
  kw_switch(&rt.main_sp, f->sp);
}

[[noreturn]] void fail(int error, const char* kind, const char* message) {
  rt.sticky_error = error;
  rt.error_message = message;
  note(kind, std::string(message) + where());
  void* lost;
  if (rt.inside) kw_switch(&lost, rt.main_sp);
  throw std::runtime_error(message);
}

void assertion(const char* condition, int line) {
  std::string text = "device-side assert triggered: " + std::string(condition) + ", line " + std::to_string(line);
  fail(710, "device-assert", text.c_str());
}

void note(const char* kind, const std::string& message) {
  for (auto& f : rt.findings)
    if (f.kind == kind) { f.count++; return; }
  rt.findings.push_back({kind, message, 1});
}

// ---- warps

static void complete(int w, Group& g) {
  unsigned who = g.arrived;
  g.present[g.phase] = who;
  g.arrived = 0;
  g.phase ^= 1;
  if (rt.variant.races) race_meeting(w, who);
  for (int l = 0; l < 32; l++) {
    int t = w * 32 + l;
    if ((who >> l & 1) && rt.wait[t] == Wait::kWarp) { rt.wait[t] = Wait::kReady; rt.at_warp--; }
  }
}

static Group& group_of(Warp& w, unsigned mask, bool open) {
  for (Group* g : w.groups) if (g->mask == mask && g->open == open) return *g;
  Group* found = nullptr;
  for (Group* g : w.groups) if (g->mask == 0) { found = g; break; }
  if (!found) w.groups.push_back(found = new Group);
  found->mask = mask;
  found->open = open;
  return *found;
}

static Meeting meet_in(Group& g, const void* value, size_t bytes) {
  int t = rt.current, w = t >> 5, l = t & 31;
  Warp& warp = rt.warp[w];
  int phase = g.phase;
  if (bytes) std::memcpy(g.values[phase][l], value, bytes);
  g.arrived |= 1u << l;
  unsigned needed = g.mask & warp.alive;
  if ((g.arrived & needed) == needed) complete(w, g);
  else {
    rt.wait[t] = Wait::kWarp;
    rt.at_warp++;
    suspend();
  }
  return {g.present[phase], g.values[phase]};
}

Meeting meet(unsigned mask, const void* value, size_t bytes) {
  if (watch == Watch::kTime) timed_place(__builtin_return_address(0));
  if (!(mask >> lane() & 1)) fail(719, "warp-mask", "a warp-level operation whose mask does not name the calling lane");
  return meet_in(group_of(rt.warp[rt.current >> 5], mask, false), value, bytes);
}

unsigned converged_lanes() {
  if (watch == Watch::kTime) timed_place(__builtin_return_address(0));
  return meet_in(group_of(rt.warp[rt.current >> 5], ~0u, true), nullptr, 0).present;
}

// ---- asynchronous copies

static void land(const Copy& c) {
  std::memcpy(c.to, c.from, c.bytes - c.zero_fill);
  std::memset(c.to + c.bytes - c.zero_fill, 0, c.zero_fill);
}
void copy_later(void* to, const void* from, size_t bytes, size_t zero_fill) {
  int t = rt.current;
  if (zero_fill > bytes) fail(719, "unsupported", "__pipeline_memcpy_async fills more than it copies");
  std::memset(to, poison_byte(), bytes);
  rt.copying = true;
  rt.copies[t].push_back({static_cast<char*>(to), static_cast<const char*>(from), bytes, zero_fill, rt.batch[t]});
}
void commit_copies() { rt.batch[rt.current]++; }
void wait_copies(unsigned newest_left) {
  int t = rt.current;
  auto& list = rt.copies[t];
  unsigned done = rt.batch[t] > newest_left ? rt.batch[t] - newest_left : 0;
  size_t kept = 0;
  for (size_t i = 0; i < list.size(); i++) {
    if (list[i].batch < done) land(list[i]);
    else list[kept++] = list[i];
  }
  list.resize(kept);
}

// ---- barriers

void barrier(int line) {
  if (watch == Watch::kTime) timed_place(__builtin_return_address(0));
  int t = rt.current;
  rt.wait[t] = Wait::kBarrier;
  rt.line[t] = line;
  rt.at_barrier++;
  suspend();
}

int barrier_count(int predicate, int line) {
  rt.votes += predicate != 0;
  barrier(line);
  int result = rt.counted;
  barrier(line);
  return result;
}

static void release_barrier() {
  int line = -1, other = -1;
  for (int t = 0; t < rt.threads; t++) {
    if (rt.wait[t] != Wait::kBarrier) continue;
    if (line < 0) line = rt.line[t];
    else if (rt.line[t] != line && other < 0) other = rt.line[t];
    rt.wait[t] = Wait::kReady;
  }
  if (other >= 0)
    note("divergent-barrier", "threads of one block wait at different __syncthreads() (lines " + std::to_string(line) + " and " +
                                  std::to_string(other) + ")" + where());
  rt.idle = 0;
  rt.at_barrier = 0;
  rt.counted = rt.votes;
  rt.votes = 0;
  if (rt.variant.races) race_barrier();
  if (watch == Watch::kTime) timed_barrier();
}

constexpr uint64_t kIdle = 4000000;

static void yield(uint64_t weight) {
  if (!rt.inside) return;
  if ((rt.idle += weight) > kIdle) fail(702, "deadlock", "deadlock: threads wait in a loop for what no thread of their block does");
  rt.wait[rt.current] = Wait::kReady;
  if (watch == Watch::kTime) timed_pause();
  suspend();
}

void pause() { yield(1); }

void fence() { if (rt.variant.races) race_fence(); }

KW_UNTRACKED void atomic_access(const volatile void* address, size_t bytes) {
  if (rt.variant.races) race_atomic(const_cast<const void*>(address), bytes, __builtin_return_address(0));
  if (watch == Watch::kTime) timed_access(uintptr_t(address), __builtin_return_address(0), true);
  // A thread that does nothing but atomics may be spinning on a lock another one holds.
  if (++rt.spins % 512 == 0) yield(8);
}

// ---- shared memory

static const char* const kUnseen = "the code cannot be written: accesses would go unseen";

static void poison(void* p, size_t n) { std::memset(p, poison_byte(), n); }
static constexpr unsigned char kCanary = 0xFF;  // who reads it reads NaN

void enter_shared(SharedArea& area, unsigned char* body, size_t bytes, const char* name) {
  if (!rt.inside) return;  // host code that names a shared variable
  area.block = block_serial;
  area.bytes = bytes;
  area.name = name;
  area.body = body;
  rt.areas.push_back(&area);
  if (!rt.entered && watch == Watch::kTime && !see_calls(true)) {
    rt.sticky_error = 719;
    rt.error_message = kUnseen;
    note("unsupported", rt.error_message + where());
  }
  rt.entered = true;
  if (rt.variant.poison >= 0) {
    std::memset(body - kGuard, kCanary, kGuard);
    std::memset(body + bytes, kCanary, kGuard);
    poison(body, bytes);
  } else {
    std::memset(body, 0, bytes);
  }
  rt.static_bytes += bytes;
  if (rt.variant.races) { race_shared(body, bytes); race_name(body, bytes, name); }
  if (rt.static_bytes > kDefaultShared)
    fail(1, "shared-memory-limit", "the kernel declares more than 48 KiB of static shared memory (ptxas refuses it)");
  if (rt.static_bytes + rt.dynamic_bytes > kMaxDynamicShared)
    fail(9, "launch-error", "static and dynamic shared memory exceed 227 KiB");
}

static std::vector<SharedGlobal*>& shared_globals() {
  static std::vector<SharedGlobal*> list;
  return list;
}
void SharedGlobal::add() { shared_globals().push_back(this); }

static bool intact(const unsigned char* zone, size_t n) {
  for (size_t i = 0; i < n; i++) if (zone[i] != kCanary) return false;
  return true;
}

static char* dynamic_base() {
  static char* base = [] {
    char* p = static_cast<char*>(mmap(nullptr, kMaxDynamicShared + 4 * kPage, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    size_t body = (kMaxDynamicShared + 2 * kPage) / kPage * kPage;
    mprotect(p, kPage, PROT_NONE);
    mprotect(p + kPage + body, kPage, PROT_NONE);
    return p + kPage;
  }();
  return base;
}
static constexpr size_t kDynamicRoom = (kMaxDynamicShared + 2 * kPage) / kPage * kPage;

static void check_canaries() {
  if (rt.variant.poison < 0) return;
  for (SharedArea* a : rt.areas) {
    if (!intact(a->body - kGuard, kGuard) || !intact(a->body + a->bytes, kGuard))
      note("shared-out-of-bounds", std::string("a thread wrote outside the shared array ") + a->name + where());
  }
  const unsigned char* d = reinterpret_cast<unsigned char*>(rt.dynamic);
  const unsigned char* base = reinterpret_cast<unsigned char*>(dynamic_base());
  size_t before = std::min<size_t>(size_t(d - base), kGuard), after = std::min<size_t>(kDynamicRoom - size_t(d - base) - rt.dynamic_bytes, kGuard);
  if (!intact(d - before, before) || !intact(d + rt.dynamic_bytes, after))
    note("shared-out-of-bounds", "a thread wrote outside dynamic shared memory" + where());
}

// ---- blocks

__attribute__((noinline)) static void thread_main() {
  for (;;) {
    while (rt.next < rt.limit && !rt.sticky_error) {
      int t = rt.order[rt.next++];
      rt.current = t;
      rt.wait[t] = Wait::kReady;
      rt.fiber_of[t] = rt.fiber;
      threadIdx = rt.index[t];
      rt.spins = 0;
      rt.body(rt.context);
      t = rt.current;
      if (rt.variant.races) race_thread_end();
      rt.wait[t] = Wait::kDone;
      rt.idle = 0;
      rt.alive--;
      Warp& w = rt.warp[t >> 5];
      w.alive &= ~(1u << (t & 31));
      for (Group* g : w.groups) {
        unsigned needed = g->mask & w.alive;
        if (g->arrived && (g->arrived & needed) == needed) complete(t >> 5, *g);
      }
    }
    Fiber* f = rt.fiber;
    rt.free_fibers.push_back(f);
    kw_switch(&f->sp, rt.main_sp);
    rt.fiber = f;
  }
}

static void make_order() {
  int n = rt.threads, warps = rt.warps;
  for (int i = 0; i < n; i++) rt.order[i] = i;
  if (rt.variant.order == kReversed) std::reverse(rt.order, rt.order + n);
  if (rt.variant.order == kRandomThreads)
    for (int i = n - 1; i > 0; i--) std::swap(rt.order[i], rt.order[draw() % uint64_t(i + 1)]);
  if (rt.variant.order == kRandomWarps || rt.variant.order == kGreedyReversed) {
    int p[kMaxWarps];
    for (int i = 0; i < warps; i++) p[i] = rt.variant.order == kGreedyReversed ? warps - 1 - i : i;
    if (rt.variant.order == kRandomWarps)
      for (int i = warps - 1; i > 0; i--) std::swap(p[i], p[draw() % uint64_t(i + 1)]);
    int k = 0;
    for (int i = 0; i < warps; i++)
      for (int t = p[i] * 32; t < std::min(n, p[i] * 32 + 32); t++) rt.order[k++] = t;
  }
}

// Runs what can run in positions [first, last) of the order; true if anything did.
static bool sweep(int first, int last) {
  bool progress = false;
  rt.end = last;
  for (rt.at = first; rt.at < last && !rt.sticky_error; rt.at++) {  // a thread that is suspended may move it on
    int t = rt.order[rt.at];
    if (rt.wait[t] == Wait::kReady) { progress = true; resume(rt.fiber_of[t]); }
  }
  rt.end = 0;
  return progress;
}

bool start_until(int limit) {
  bool progress = false;
  rt.limit = limit;
  while (rt.next < limit && !rt.sticky_error) { progress = true; resume(take_fiber()); }
  return progress;
}

// Groups whose members are whoever came; true if there was one.
static bool complete_open() {
  bool found = false;
  for (int w = 0; w < rt.warps; w++)
    for (Group* g : rt.warp[w].groups) if (g->open && g->arrived) { complete(w, *g); found = true; }
  return found;
}

static void run_block() {
  block_serial++;
  rt.next = 0;
  rt.idle = 0;
  rt.alive = rt.threads;
  rt.at_barrier = rt.at_warp = rt.votes = rt.counted = 0;
  rt.static_bytes = 0;
  rt.areas.clear();
  if (rt.copying) for (auto& list : rt.copies) list.clear();
  rt.copying = false;
  std::memset(rt.batch, 0, sizeof rt.batch);
  for (int w = 0; w < rt.warps; w++) {
    int count = std::min(32, rt.threads - w * 32);
    rt.warp[w].alive = count == 32 ? ~0u : (1u << count) - 1;
    for (Group* g : rt.warp[w].groups) { g->mask = 0; g->arrived = 0; }
  }
  std::memset(rt.wait, int(Wait::kNew), sizeof rt.wait);
  poison(rt.dynamic, rt.dynamic_bytes);
  if (rt.variant.races) { race_block_begin(); race_shared(rt.dynamic, rt.dynamic_bytes); }
  for (SharedGlobal* g : shared_globals()) enter_shared(*g->area, g->body, g->bytes, g->name);
  bool timed = rt.variant.order == kTimed, greedy = rt.variant.order == kGreedyWarp || rt.variant.order == kGreedyReversed;
  if (timed) timed_block();
  else if (!greedy) start_until(rt.threads);
  while (rt.alive > 0 && !rt.sticky_error) {
    bool progress = false;
    if (timed) {
      progress = timed_sweep();
    } else if (greedy) {
      for (int w = 0; w < rt.warps && !rt.sticky_error; w++) {
        int first = w * 32, last = std::min(rt.threads, first + 32);
        if (rt.variant.order == kGreedyReversed) {  // the ragged warp comes first
          first = w == 0 ? 0 : rt.threads - (rt.warps - w) * 32;
          last = rt.threads - (rt.warps - w - 1) * 32;
        }
        progress |= start_until(last);
        while (sweep(first, last)) progress = true;
      }
    } else {
      progress = sweep(0, rt.threads);
    }
    if (progress) continue;
    if (rt.at_barrier && rt.at_barrier == rt.alive) { release_barrier(); continue; }
    if (rt.at_warp && complete_open()) continue;
    if (rt.at_warp) {  // lanes named by a mask do not come: go on with those that did
      rt.lenient++;
      note("divergent-warp", "a warp-level operation names lanes that do not take part" + where());
      for (int w = 0; w < rt.warps; w++)
        for (Group* g : rt.warp[w].groups) if (g->arrived) complete(w, *g);
      continue;
    }
    rt.sticky_error = 702;
    rt.error_message = "deadlock: no thread of the block can continue";
    note("deadlock", rt.error_message + where());
  }
  check_canaries();
}

// ---- faults

// "@offset" in the library; emulator.py makes a line of the source of it.
std::string code_address(void* pc) {
  Dl_info info;
  if (!dladdr(pc, &info)) return "?";
  char text[32];
  snprintf(text, sizeof text, "@%zx", size_t(static_cast<char*>(pc) - static_cast<char*>(info.dli_fbase)));
  return text;
}

static void on_fault(int signal, siginfo_t* info, void* context) {
  if (!rt.inside) {  // not a kernel's: let it kill the process
    struct sigaction fall {};
    fall.sa_handler = SIG_DFL;
    sigaction(signal, &fall, nullptr);
    return;
  }
  char* address = static_cast<char*>(info->si_addr);
  const auto* machine = &static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  void* pc = reinterpret_cast<void*>(machine->gregs[REG_RIP]);
#else
  void* pc = reinterpret_cast<void*>(machine->pc);
#endif
  const char* kind = "illegal-access";
  const char* message = "an illegal memory access was encountered";
  int error = 700;
  if (signal == SIGFPE) { kind = "integer-division"; message = "integer division by zero"; error = 719; }
  if (signal == SIGILL) { kind = "trap"; message = "an illegal instruction was encountered"; error = 715; }
  for (auto& range : rt.host_pages)
    if (address >= range.first && address < range.first + range.second) message = "an illegal memory access was encountered (a CPU tensor)";
  if (address >= rt.stacks && address < rt.stacks + kStack * kMaxThreads) {
    kind = "stack-overflow";
    message = "a thread's local memory overflowed (128 KiB here; recursion or a large local array)";
    error = 719;
  }
  rt.sticky_error = error;
  rt.error_message = message;
  note(kind, std::string(message) + where() + ", " + code_address(pc));
  void* lost;
  kw_switch(&lost, rt.main_sp);  // the faulting fiber is abandoned; reset_fibers() takes its stack back
}

struct FaultHandlers {
  struct sigaction old[4];
  static constexpr int signals[4] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
  FaultHandlers() {
    static char* stack = [] {
      char* p = static_cast<char*>(mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      return p;
    }();
    stack_t alternate{};
    alternate.ss_sp = stack;
    alternate.ss_size = 65536;
    sigaltstack(&alternate, nullptr);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < 4; i++) sigaction(signals[i], &action, &old[i]);
  }
  ~FaultHandlers() { for (int i = 0; i < 4; i++) sigaction(signals[i], &old[i], nullptr); }
};
constexpr int FaultHandlers::signals[4];

// ---- launches

static size_t shared_limit(const void* function) {
  size_t limit = kDefaultShared, largest = kDefaultShared;
  bool known = false;
  for (auto& entry : rt.opted_in) {
    largest = std::max(largest, size_t(entry.second));
    if (entry.first == function) { known = true; limit = size_t(entry.second); }
  }
  return function && known ? limit : function ? kDefaultShared : largest;
}

static const char* refuse(const Config& c, const void* function) {
  uint64_t n = uint64_t(c.block.x) * c.block.y * c.block.z;
  if (n == 0 || n > kMaxThreads || c.block.x > 1024 || c.block.y > 1024 || c.block.z > 64) return "invalid configuration argument";
  if (!c.grid.x || !c.grid.y || !c.grid.z || c.grid.x > 2147483647u || c.grid.y > 65535u || c.grid.z > 65535u) return "invalid configuration argument";
  if (c.shared > shared_limit(function)) return "invalid argument";
  return nullptr;
}

static uint64_t gcd(uint64_t a, uint64_t b) { return b ? gcd(b, a % b) : a; }

void run_grid(const Config& c, const char* name, const void* function, void (*body)(void*), void* context) {
  if (rt.sticky_error) return;
  if (rt.inside) fail(719, "unsupported", "a kernel launched a kernel (dynamic parallelism is not emulated)");
  rt.kernel = name;
  if (const char* message = refuse(c, function)) {
    rt.launch_error = message[8] == 'c' ? 9 : 1;
    rt.rejected_launches++;
    note("launch-error", std::string(message) + ": kernel " + name + " with grid (" + std::to_string(c.grid.x) + "," + std::to_string(c.grid.y) +
                             "," + std::to_string(c.grid.z) + "), block (" + std::to_string(c.block.x) + "," + std::to_string(c.block.y) + "," +
                             std::to_string(c.block.z) + "), " + std::to_string(c.shared) + " bytes of dynamic shared memory");
    return;
  }
  if (!rt.stacks)
    rt.stacks = static_cast<char*>(mmap(nullptr, kStack * kMaxThreads, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  rt.launches++;
  rt.threads = int(c.block.x * c.block.y * c.block.z);
  rt.warps = (rt.threads + 31) / 32;
  uint64_t blocks = uint64_t(c.grid.x) * c.grid.y * c.grid.z;
  rt.kernel_threads += blocks * uint64_t(rt.threads);
  rt.body = body;
  rt.context = context;
  rt.random = rt.variant.seed + rt.launches * 0x1000003ull;
  int k = 0;
  for (unsigned z = 0; z < c.block.z; z++)
    for (unsigned y = 0; y < c.block.y; y++)
      for (unsigned x = 0; x < c.block.x; x++) rt.index[k++] = {x, y, z};
  blockDim = c.block;
  gridDim = c.grid;
  rt.dynamic_bytes = c.shared;
  rt.dynamic = dynamic_base() + (rt.variant.placement ? 0 : kDynamicRoom - c.shared);
  if (rt.variant.poison >= 0) {
    std::memset(rt.dynamic - std::min<size_t>(size_t(rt.dynamic - dynamic_base()), kGuard), kCanary,
                std::min<size_t>(size_t(rt.dynamic - dynamic_base()), kGuard));
    size_t rest = kDynamicRoom - size_t(rt.dynamic - dynamic_base()) - c.shared;
    std::memset(rt.dynamic + c.shared, kCanary, std::min<size_t>(rest, kGuard));
  }
  make_order();
  if (rt.variant.races) race_launch_begin();
  FaultHandlers handlers;
  bool random = rt.variant.order == kRandomThreads || rt.variant.order == kRandomWarps;
  bool backwards = rt.variant.order == kReversed || rt.variant.order == kGreedyReversed;
  uint64_t step = 1, start = 0;
  if (random && blocks > 1) {
    start = draw() % blocks;
    do step = 1 + draw() % (blocks - 1); while (gcd(step, blocks) != 1);
  }
  rt.entered = false;
  if (!see_calls(rt.variant.races || (rt.variant.order == kTimed && rt.dynamic_bytes > 0))) {
    rt.sticky_error = 719;
    rt.error_message = kUnseen;
    note("unsupported", rt.error_message + where());
  }
  for (auto& range : rt.host_pages) mprotect(range.first, range.second, PROT_NONE);
  rt.inside = emulating() = true;
  watch = rt.variant.races ? Watch::kRaces : rt.variant.order == kTimed ? Watch::kTime : Watch::kNothing;
  for (uint64_t i = 0; i < blocks && !rt.sticky_error; i++) {
    uint64_t b = backwards ? blocks - 1 - i : random ? uint64_t((__uint128_t(i) * step + start) % blocks) : i;
    blockIdx = {unsigned(b % c.grid.x), unsigned(b / c.grid.x % c.grid.y), unsigned(b / c.grid.x / c.grid.y)};
    if (random && i) make_order();
    run_block();
  }
  rt.inside = emulating() = false;
  watch = Watch::kNothing;
  for (auto& range : rt.host_pages) mprotect(range.first, range.second, PROT_READ | PROT_WRITE);
  if (rt.sticky_error) reset_fibers();
}

}  // namespace emu
}  // namespace kw
