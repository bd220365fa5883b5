/* Runs kernels compiled for another processor, without a C library: kernel_emulator.py links it.
 *
 * A message is a header of eight 64-bit words (bytes of the message, number of the kernel, number
 * of tensors), eight words for each tensor (offset of its data, DLPack code, bits, ndim, shape),
 * and data, at multiples of 64 bytes. The answer is the message with what the kernel wrote, the
 * first word replaced by the kernel's result; on an error a text takes the tensors' place. */
#include <stdint.h>

#define ALIGNED __attribute__((aligned(64)))
enum { kMessageBytes = 8 << 20, kWorkspaceBytes = 4 << 20, kTensors = 16, kDims = 4, kTasks = 3 };

typedef struct {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} Tensor;

typedef struct {
  int32_t type_index;
  uint32_t padding;
  union {
    int64_t word;
    void* pointer;
  } value;
} Argument;

typedef struct {
  int64_t offset, code, bits, ndim, shape[kDims];
} TensorRecord;

typedef struct {
  int64_t bytes, kernel, tensors, reserved[5];
  TensorRecord records[];
} Message;

typedef int (*Kernel)(void* self, const Argument* arguments, int32_t count, Argument* result);
typedef struct {
  void* sync;
  int32_t tasks;
} GroupEnvironment;
typedef int (*Task)(int task, GroupEnvironment* environment, void* closure);

extern const Kernel kernels[]; /* generated */

static ALIGNED uint8_t memory[kMessageBytes];
static ALIGNED uint8_t workspace[kWorkspaceBytes];
static uint64_t workspace_used;
static int workspace_blocks;

/* Compilers make calls of these two from loops; kernels may call them, too. */
void* memset(void* to, int value, __SIZE_TYPE__ size) {
  volatile uint8_t* bytes = to;
  for (__SIZE_TYPE__ i = 0; i < size; ++i) bytes[i] = (uint8_t)value;
  return to;
}

void* memcpy(void* to, const void* from, __SIZE_TYPE__ size) {
  volatile uint8_t* bytes = to;
  for (__SIZE_TYPE__ i = 0; i < size; ++i) bytes[i] = ((const uint8_t*)from)[i];
  return to;
}

/* ---- what kernels call ---------------------------------------------------------------------- */

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  char* text = (char*)((Message*)memory)->records;
  char* end = text + sizeof(TensorRecord) - 1;
  (void)kind;
  for (int32_t i = 0; i < count; ++i) {
    for (const char* c = parts[i]; c && *c && text < end; ++c) *text++ = *c;
  }
  *text = 0;
}

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}

static int launch(Task task, void* closure, int tasks) {
  GroupEnvironment environment = {0, tasks ? tasks : kTasks};
  for (int i = 0; i < environment.tasks; ++i) {
    const int status = task(i, &environment, closure);
    if (status != 0) return status;
  }
  return 0;
}

static void* allocate(int type, int id, uint64_t size, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  size = (size + 63) / 64 * 64;
  if (size > kWorkspaceBytes - workspace_used) return 0;
  workspace_used += size;
  ++workspace_blocks;
  return workspace + workspace_used - size;
}

static int release(int type, int id, void* data) {
  (void)type, (void)id, (void)data;
  if (--workspace_blocks == 0) workspace_used = 0;
  return 0;
}

/* The slots that kernels find them in; an object that needs one has it as a weak symbol. */
int (*__TVMBackendParallelLaunch)(Task, void*, int) = launch;
void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = allocate;
int (*__TVMBackendFreeWorkspace)(int, int, void*) = release;

/* ---- messages ------------------------------------------------------------------------------- */

static void run_message(void) {
  Message* message = (Message*)memory;
  static Tensor tensors[kTensors];
  static Argument arguments[kTensors];
  Argument result = {0, 0, {0}};
  for (int64_t i = 0; i < message->tensors && i < kTensors; ++i) {
    TensorRecord* record = &message->records[i];
    tensors[i] = (Tensor){.data = memory + record->offset,
                          .device_type = 1,
                          .ndim = (int32_t)record->ndim,
                          .code = (uint8_t)record->code,
                          .bits = (uint8_t)record->bits,
                          .lanes = 1,
                          .shape = record->shape};
    arguments[i] = (Argument){.type_index = 7, .value = {.pointer = &tensors[i]}};
  }
  const int32_t count = (int32_t)message->tensors;
  message->bytes = kernels[message->kernel](0, arguments, count, &result);
}

#if defined(__wasm__)

__attribute__((export_name("message"))) void* message_address(void) { return memory; }
__attribute__((export_name("capacity"))) int message_capacity(void) { return kMessageBytes; }
__attribute__((export_name("run"))) void run(void) { run_message(); }

#elif defined(__aarch64__)

enum { kRead = 63, kWrite = 64, kExit = 93 };

static long system_call(long number, long first, long second, long third) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = first;
  register long x1 __asm__("x1") = second;
  register long x2 __asm__("x2") = third;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
}

static void transfer(long call, uint8_t* data, int64_t size) {
  while (size > 0) {
    const long done = system_call(call, call == kWrite, (long)data, size);
    if (done <= 0) system_call(kExit, done < 0, 0, 0); /* the end of the input, too */
    data += done;
    size -= done;
  }
}

void _start(void) {
  transfer(kWrite, memory, 1); /* its file is loaded and may be removed */
  for (;;) {
    transfer(kRead, memory, sizeof(Message));
    const int64_t bytes = ((Message*)memory)->bytes;
    if (bytes > kMessageBytes) system_call(kExit, 2, 0, 0);
    transfer(kRead, memory + sizeof(Message), bytes - (int64_t)sizeof(Message));
    run_message();
    transfer(kWrite, memory, bytes);
  }
}

#endif
