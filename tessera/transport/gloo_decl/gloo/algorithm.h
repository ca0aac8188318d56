#pragma once

#include "gloo/context.h"  // see there why
