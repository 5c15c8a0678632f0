/// @file
/// Clocks and durations. The header of that name would bring its calendar and the streams along,
/// which cost every translation unit a tenth of a second; one that waits until a time has all that
/// is needed here.
#pragma once

#include <condition_variable>
