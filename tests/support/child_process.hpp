/// @file
/// What would end a test's own process happens in another one.
#pragma once

#include <doctest/doctest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <string>

/// What a child process prints to its standard error before it ends, and how it ends.
template <class Body>
std::string last_words(Body const& body, int& status) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  pid_t const child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    // doctest's own handlers would call it a failed test.
    for (int const signal : {SIGABRT, SIGSEGV, SIGBUS}) std::signal(signal, SIG_DFL);
    body();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char letters[256];
  for (ssize_t n = 0; (n = ::read(ends[0], letters, sizeof(letters))) > 0;) {
    text.append(letters, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  REQUIRE(::waitpid(child, &status, 0) == child);
  return text;
}
