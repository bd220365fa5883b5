// What every function of the C interface does with what is thrown inside it.
#pragma once
#include <exception>
#include <new>

#include "core/error.h"

namespace mlcb {

// Makes `message` the thread's last error; returns `status`.
mlcb_status report(mlcb_status status, const char* message);

// Runs body(); whatever it throws becomes a status and the thread's last error.
template <typename Body>
mlcb_status guarded(Body body) {
  try {
    body();
    return MLCB_OK;
  } catch (const Error& error) {
    return report(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return report(MLCB_ERROR_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return report(MLCB_ERROR_INTERNAL, error.what());
  } catch (...) {
    return report(MLCB_ERROR_INTERNAL, "unknown exception");
  }
}

inline void require(bool holds, const char* message) {
  if (!holds) throw Error(MLCB_ERROR_ARGUMENT, message);
}

}  // namespace mlcb
