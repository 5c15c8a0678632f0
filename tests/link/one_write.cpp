// Without exceptions and without a handler an error is printed, in one write: lines of several
// ranks that share a terminal do not mix. Some C libraries print a format in pieces of 128 bytes.
#include <zero/zero.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#if defined(__cpp_exceptions)
#error "this program must be compiled without exceptions"
#endif

int main() {
  std::string const name(300, 'n');
  int ends[2];
  // Each write is a packet of its own.
  if (pipe2(ends, O_DIRECT) != 0) return 1;
  pid_t const child = fork();
  if (child == 0) {
    rlimit const no_core{};
    setrlimit(RLIMIT_CORE, &no_core);
    dup2(ends[1], STDERR_FILENO);
    static_cast<void>(zero::Placement({{.name = name}, {.name = name}}));
    _exit(0);
  }
  close(ends[1]);
  char packet[4096];
  ssize_t const bytes = read(ends[0], packet, sizeof packet);
  int status = 0;
  waitpid(child, &status, 0);
  std::string const text(packet, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  std::printf("%s", text.c_str());
  bool const whole = text.find(name) != std::string::npos && text.back() == '\n';
  return WIFSIGNALED(status) && whole && read(ends[0], packet, sizeof packet) == 0 ? 0 : 2;
}
