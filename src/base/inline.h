/* SPDX-License-Identifier: Apache-2.0 */
/* Marks inline functions whose arithmetic GPU kernels share with the CPU: the same source, the same bits. */
#ifndef LADE_INLINE_H
#define LADE_INLINE_H

#ifdef __CUDACC__
#define LADE_INLINE static inline __host__ __device__
#else
#define LADE_INLINE static inline
#endif

#endif
