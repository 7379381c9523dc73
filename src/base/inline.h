/* SPDX-License-Identifier: Apache-2.0 */
/* Inline functions of headers whose arithmetic kernels on a GPU share with the CPU: the same source, the same bits. */
#ifndef LADE_INLINE_H
#define LADE_INLINE_H

#ifdef __CUDACC__
#define LADE_INLINE static inline __host__ __device__
#else
#define LADE_INLINE static inline
#endif

#endif
