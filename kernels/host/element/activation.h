/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of the activations, for activation.c and activation_vec.c; kernels/host/element/activation.c explains. */
#ifndef LADE_KERNELS_ACTIVATION_H
#define LADE_KERNELS_ACTIVATION_H

#include "kernels/kernels.h"

#define SQRT_2_OVER_PI 0.79788456080286535588
#define CUBIC 0.044715
#define QUICK 1.702
#define SLOPE_END 100.0

#endif
