/* Kernels of the hand-made test bundle (tests/unit/fake_bundle.py): plain C behind the packed call
 * of real kernels, so that loader, plan, cache and batching are exercised without a compiler run.
 * Each output row is computed in one fixed order, whatever rows come along with it. */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} DataType;
typedef struct {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} Tensor;
typedef struct {
  int32_t type_index;
  uint32_t padding;
  union {
    int64_t i;
    double f;
    void* p;
  } value;
} Any;
typedef struct {
  void* sync_handle;
  int32_t num_task;
} Env;
typedef int (*Task)(int, Env*, void*);

#define API __attribute__((visibility("default")))
#define SLOT __attribute__((weak, visibility("default")))

SLOT int (*__TVMBackendParallelLaunch)(Task, void*, int32_t);
SLOT int (*__TVMBackendParallelBarrier)(int, Env*);
SLOT void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
SLOT int (*__TVMBackendFreeWorkspace)(int, int, void*);
void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count);
void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message);

static int fail(const char* message) {
  const char* parts[2] = {"fake kernel: ", message};
  TVMFFIErrorSetRaisedFromCStrParts("ValueError", parts, 2);
  return -1;
}

static Tensor* tensor(const Any* args, int i) { return (Tensor*)args[i].value.p; }
static float* floats(const Any* args, int i) { return (float*)tensor(args, i)->data; }
static int32_t* ints(const Any* args, int i) { return (int32_t*)tensor(args, i)->data; }

/* ids [n], table [vocab, width] -> out [n, width]; the last two ids of the table misbehave. */
API int __tvm_ffi_t_embed(void* self, const Any* args, int32_t count, Any* result) {
  (void)self, (void)result;
  if (count != 3 || args[0].type_index != 7) return fail("embed: bad call");
  int64_t rows = tensor(args, 0)->shape[0], width = tensor(args, 1)->shape[1];
  int64_t vocab = tensor(args, 1)->shape[0];
  for (int64_t i = 0; i < rows; ++i) {
    int32_t id = ints(args, 0)[i];
    if (id < 0 || id >= vocab) return fail("embed: id out of range");
    if (id == vocab - 1) return fail("embed: the forbidden token");
    memcpy(floats(args, 2) + i * width, floats(args, 1) + id * width, (size_t)width * 4);
  }
  return 0;
}

typedef struct {
  const float *x, *w;
  float* out;
  int64_t rows, width, columns;
} Matmul;

static int matmul_task(int task, Env* env, void* closure) {
  const Matmul* m = closure;
  int64_t chunk = (m->columns + env->num_task - 1) / env->num_task;
  int64_t end = (task + 1) * chunk < m->columns ? (task + 1) * chunk : m->columns;
  for (int64_t i = 0; i < m->rows; ++i) {
    for (int64_t j = task * chunk; j < end; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < m->width; ++k) sum += m->x[i * m->width + k] * m->w[j * m->width + k];
      if (!(sum == sum)) {
        TVMFFIErrorSetRaisedFromCStr("ValueError", "matmul: not a number");
        return -1;
      }
      m->out[i * m->columns + j] = sum;
    }
  }
  return 0;
}

/* x [..., width], w [columns, width] -> out [..., columns] */
API int __tvm_ffi_t_matmul(void* self, const Any* args, int32_t count, Any* result) {
  (void)self, (void)result;
  if (count != 3) return fail("matmul: bad call");
  Tensor *x = tensor(args, 0), *w = tensor(args, 1);
  if (x->shape[x->ndim - 1] != w->shape[1]) return fail("matmul: shapes differ");
  Matmul m = {floats(args, 0),       floats(args, 1), floats(args, 2),
              x->shape[x->ndim - 2], w->shape[1],     w->shape[0]};
  return __TVMBackendParallelLaunch(matmul_task, &m, 0);
}

/* x [rows, heads * dim], table [positions, dim], positions [rows] -> out */
API int __tvm_ffi_t_rope(void* self, const Any* args, int32_t count, Any* result) {
  (void)self, (void)result, (void)count;
  Tensor* x = tensor(args, 0);
  int64_t rows = x->shape[0], width = x->shape[1], dim = tensor(args, 1)->shape[1];
  for (int64_t i = 0; i < rows; ++i) {
    if (ints(args, 2)[i] >= tensor(args, 1)->shape[0]) return fail("rope: position out of range");
    const float* table = floats(args, 1) + ints(args, 2)[i] * dim;
    for (int64_t h = 0; h < width; h += dim) {
      const float* in = floats(args, 0) + i * width + h;
      float* out = floats(args, 3) + i * width + h;
      for (int64_t d = 0; d < dim / 2; ++d) {
        float c = table[d], s = table[dim / 2 + d], a = in[d], b = in[dim / 2 + d];
        out[d] = a * c - b * s;
        out[dim / 2 + d] = b * c + a * s;
      }
    }
  }
  return 0;
}

/* k, v [rows, heads * dim], slots [rows], pages [n, 2, heads, page_size * dim], page_size */
API int __tvm_ffi_t_append(void* self, const Any* args, int32_t count, Any* result) {
  (void)self, (void)result, (void)count;
  Tensor* pages = tensor(args, 3);
  int64_t rows = tensor(args, 0)->shape[0], heads = pages->shape[2], size = args[4].value.i;
  int64_t dim = pages->shape[3] / size;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t page = ints(args, 2)[i] / size, offset = ints(args, 2)[i] % size;
    if (page >= pages->shape[0]) return fail("append: slot out of range");
    float* base = (float*)pages->data + page * 2 * heads * size * dim;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < dim; ++d) {
        base[(h * dim + d) * size + offset] = floats(args, 0)[(i * heads + h) * dim + d];
        base[((heads + h) * size + offset) * dim + d] = floats(args, 1)[(i * heads + h) * dim + d];
      }
    }
  }
  return 0;
}

/* Where a row's token t lies in its page list, sinks before the pages that were dropped. */
typedef struct {
  const int32_t* list;
  int64_t size, sink_pages, skip;
} Row;

static int64_t page_of(const Row* row, int64_t t) {
  int64_t page = t / row->size;
  return row->list[page < row->sink_pages ? page : page - row->skip];
}

/* q [rows, q_heads * dim], pages, positions, page_begin, page_values, page_size -> out;
 * skip: page_skip or null, and then no window. */
static int attend(const Any* args, float* result, const int32_t* skip, int64_t window,
                  int64_t sinks) {
  Tensor *q = tensor(args, 0), *pages = tensor(args, 1);
  int64_t rows = q->shape[0], width = q->shape[1], heads = pages->shape[2];
  int64_t size = args[5].value.i, dim = pages->shape[3] / size, q_heads = width / dim;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t tokens = ints(args, 2)[i] + 1;
    int64_t first = skip != 0 && tokens > window ? tokens - window : 0;
    Row row = {ints(args, 4) + ints(args, 3)[i], size, (sinks + size - 1) / size,
               skip != 0 ? skip[i] : 0};
    float* score = __TVMBackendAllocWorkspace(1, 0, (uint64_t)tokens * 4, 2, 32);
    if (score == 0 || (uintptr_t)score % 64 != 0) return fail("attention: bad workspace");
    for (int64_t h = 0; h < q_heads; ++h) {
      const float* query = floats(args, 0) + i * width + h * dim;
      float* out = result + i * width + h * dim;
      int64_t group = h * heads / q_heads;
      float most = -INFINITY, sum = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        if (t >= sinks && t < first) continue;
        const float* key = (float*)pages->data + page_of(&row, t) * 2 * heads * size * dim +
                           group * dim * size + t % size;
        float dot = 0;
        for (int64_t d = 0; d < dim; ++d) dot += query[d] * key[d * size];
        score[t] = dot / sqrtf((float)dim);
        if (score[t] > most) most = score[t];
      }
      memset(out, 0, (size_t)dim * 4);
      for (int64_t t = 0; t < tokens; ++t) {
        if (t >= sinks && t < first) continue;
        const float* value = (float*)pages->data + page_of(&row, t) * 2 * heads * size * dim +
                             ((heads + group) * size + t % size) * dim;
        float weight = expf(score[t] - most);
        sum += weight;
        for (int64_t d = 0; d < dim; ++d) out[d] += weight * value[d];
      }
      for (int64_t d = 0; d < dim; ++d) out[d] /= sum;
    }
    if (__TVMBackendFreeWorkspace(1, 0, score) != 0) return fail("attention: free");
  }
  return 0;
}

API int __tvm_ffi_t_attention(void* self, const Any* args, int32_t count, Any* result) {
  (void)self, (void)result, (void)count;
  return attend(args, floats(args, 6), 0, 0, 0);
}

/* As attention, then page_skip, window, sinks -> out */
API int __tvm_ffi_t_window_attention(void* self, const Any* args, int32_t count, Any* result) {
  (void)self, (void)result, (void)count;
  return attend(args, floats(args, 9), ints(args, 6), args[7].value.i, args[8].value.i);
}

/* a, b -> a + scale * b, all [rows, width] */
API int __tvm_ffi_t_add(void* self, const Any* args, int32_t count, Any* result) {
  (void)self, (void)result, (void)count;
  Tensor* a = tensor(args, 0);
  int64_t values = a->shape[a->ndim - 1] * a->shape[a->ndim - 2];
  if (args[2].type_index != 3) return fail("add: scale is not a float");
  for (int64_t i = 0; i < values; ++i) {
    floats(args, 3)[i] = floats(args, 0)[i] + (float)args[2].value.f * floats(args, 1)[i];
  }
  return 0;
}

/* x [1, rows, width], positions [n] -> out [1, n, width] */
API int __tvm_ffi_t_take(void* self, const Any* args, int32_t count, Any* result) {
  (void)self, (void)result, (void)count;
  int64_t width = tensor(args, 0)->shape[2], rows = tensor(args, 1)->shape[0];
  for (int64_t i = 0; i < rows; ++i) {
    int32_t row = ints(args, 1)[i];
    if (row < 0 || row >= tensor(args, 0)->shape[1]) return fail("take: row out of range");
    memcpy(floats(args, 2) + i * width, floats(args, 0) + row * width, (size_t)width * 4);
  }
  return 0;
}

static int barrier_task(int task, Env* env, void* closure) {
  (void)closure;
  return __TVMBackendParallelBarrier(task, env);
}

/* Uses a barrier, which the runtime must refuse. */
API int __tvm_ffi_t_barrier(void* self, const Any* args, int32_t count, Any* result) {
  (void)self, (void)args, (void)count, (void)result;
  __TVMBackendParallelLaunch(barrier_task, 0, 4); /* generated code ignores the result of tasks */
  return __TVMBackendParallelLaunch(barrier_task, 0, 4);
}
