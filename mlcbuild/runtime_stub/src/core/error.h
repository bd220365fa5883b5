// The one exception type of the runtime; it is turned into a status at the C interface.
#pragma once
#include <stdexcept>
#include <string>

#include "mlcb.h"

namespace mlcb {

class Error : public std::runtime_error {
 public:
  Error(mlcb_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  mlcb_status status() const { return status_; }

 private:
  mlcb_status status_;
};

}  // namespace mlcb
