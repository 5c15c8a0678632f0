#pragma once
/// What every file with test cases includes.
#include "support/standard.hpp"

#include <doctest/doctest.h>
