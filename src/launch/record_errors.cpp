#include <cstdio>
#include <exception>
#include <string>

#include "base/error_file.h"
#include "base/exception_text.h"
#include "brigade/launch.h"

namespace brigade {

int record_errors(const std::function<void()>& function) {
  std::string message;
  int code = 1;
  try {
    function();
    return 0;
  } catch (const std::exception& error) {
    message = base::describe(error);
    code = dynamic_cast<const ConfigError*>(&error) ? 2 : 1;
    base::write_error_file(error, code);
  } catch (...) {
    message = base::text_of(std::current_exception());
    base::write_error_file(message, code);
  }
  std::fprintf(stderr, "%s\n", message.c_str());
  return code;
}

}  // namespace brigade
