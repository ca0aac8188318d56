#pragma once

#include <stdexcept>  // see gloo/context.h why
