/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A guest that does nothing but write to its memory, at a known rate: 64 KiB of firmware, started at the reset vector.
 *
 * The first vCPU starts the others. Each vCPU first writes to all of its pages once, without pause. It then writes
 * one word of one page at a time, at least `interval_ticks` of the time stamp counter after its last write. A share of
 * the writes may go to hot pages. Each vCPU counts its writes, and records the end and length of each long gap.
 */
        .set COUNT, 0x8ff0              /* vCPUs that have started */
        .set STATE, 0x9000              /* 64 bytes a vCPU: the offsets below */
        .set LOG, 0x10000               /* 16 bytes a gap: end and length; a ring buffer */
        .set GAPS, 1024                 /* gaps that are stored for each vCPU */
        .set BASE, 0x100000             /* address of the first page: 1 MiB */

        .set WRITES, 0
        .set LAST, 8                    /* time of the last write */
        .set FOUND, 16                  /* long gaps so far */
        .set RANDOM, 20
        .set DUE, 24                    /* grows by hot_percent per write; at 100, a write to a hot page is due */
        .set FIRST, 28                  /* address of the vCPU's first page */
        .set HOT, 32                    /* position of the sweep over the hot pages */
        .set COLD, 36
        .set READY, 40                  /* pages that were written at the beginning */
        .set SCRATCH, 44

        .code16
        .globl _start
_start: cli
        cld
        movw    %cs, %ax
        movw    %ax, %ds
        lgdtl   table - _start
        movl    %cr0, %eax
        orb     $1, %al
        movl    %eax, %cr0
        ljmpl   $8, $protected
segments:
        .quad   0
        .quad   0x00cf9a000000ffff
        .quad   0x00cf92000000ffff
table:  .word   23
        .long   segments

        .code32
protected:
        movw    $16, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
        movl    $1, %ebp
        lock xaddl %ebp, COUNT          /* %ebp: number of this vCPU */
        testl   %ebp, %ebp
        jnz     begin
        cmpl    $1, vcpus
        je      begin
        movl    $0x000c4500, 0xfee00300 /* INIT to all others */
        movl    $1000000, %ecx
1:      loop    1b
        movl    $0x000c46f0, 0xfee00300 /* they start at F000:0000, which is _start */

begin:  movl    %ebp, %ebx              /* %ebx: state of this vCPU */
        shll    $6, %ebx
        addl    $STATE, %ebx
        leal    1(%ebp), %eax
        imull   $0x9e3779b9, %eax
        movl    %eax, RANDOM(%ebx)
        movl    pages, %eax
        mull    %ebp
        shll    $12, %eax
        addl    $BASE, %eax
        movl    %eax, FIRST(%ebx)
1:      incl    (%eax)                  /* all pages once */
        addl    $4096, %eax
        incl    READY(%ebx)
        movl    READY(%ebx), %ecx
        cmpl    pages, %ecx
        jb      1b
        rdtsc
        movl    %eax, LAST(%ebx)
        movl    %edx, LAST+4(%ebx)

again:  movl    DUE(%ebx), %eax
        addl    hot_percent, %eax
        cmpl    $100, %eax
        jb      1f
        subl    $100, %eax
        movl    %eax, DUE(%ebx)
        movl    hot_pages, %ecx         /* one of %ecx pages, the first is %edx; (%esi): position of the sweep */
        xorl    %edx, %edx
        leal    HOT(%ebx), %esi
        jmp     2f
1:      movl    %eax, DUE(%ebx)
        movl    hot_pages, %edx
        movl    pages, %ecx
        subl    %edx, %ecx
        leal    COLD(%ebx), %esi
2:      cmpl    $0, random
        je      3f
        movl    RANDOM(%ebx), %eax
        imull   $1664525, %eax
        addl    $1013904223, %eax
        movl    %eax, RANDOM(%ebx)
        movl    %edx, SCRATCH(%ebx)
        mull    %ecx
        addl    SCRATCH(%ebx), %edx
        movl    %edx, %eax
        jmp     5f
3:      movl    (%esi), %eax
        incl    %eax
        cmpl    %ecx, %eax
        jb      4f
        xorl    %eax, %eax
4:      movl    %eax, (%esi)
        addl    %edx, %eax
5:      shll    $12, %eax
        addl    FIRST(%ebx), %eax
        incl    (%eax)
        addl    $1, WRITES(%ebx)
        adcl    $0, WRITES+4(%ebx)
        rdtsc
        movl    %eax, %ecx
        movl    %edx, %esi
        subl    LAST(%ebx), %ecx
        sbbl    LAST+4(%ebx), %esi      /* %esi:%ecx: since the last write */
        movl    %eax, LAST(%ebx)
        movl    %edx, LAST+4(%ebx)
        testl   %esi, %esi
        jnz     6f
        cmpl    gap_ticks, %ecx
        jb      7f
6:      movl    FOUND(%ebx), %edi
        incl    FOUND(%ebx)
        andl    $(GAPS - 1), %edi
        shll    $4, %edi
        movl    %ebp, SCRATCH(%ebx)
        imull   $(GAPS * 16), %ebp
        leal    LOG(%edi, %ebp), %edi
        movl    SCRATCH(%ebx), %ebp
        movl    %eax, (%edi)
        movl    %edx, 4(%edi)
        movl    %ecx, 8(%edi)
        movl    %esi, 12(%edi)
7:      rdtsc                           /* wait until the next write is due */
        subl    LAST(%ebx), %eax
        sbbl    LAST+4(%ebx), %edx
        jnz     again
        cmpl    interval_ticks, %eax
        jb      7b
        jmp     again

        .balign 16
        .ascii  "simlib-migration"      /* the parameters follow this string */
vcpus:          .long 1
pages:          .long 1024              /* of each vCPU */
hot_pages:      .long 0                 /* the first of these pages */
hot_percent:    .long 0                 /* of the writes */
random:         .long 0                 /* 1: anywhere; 0: one after the other */
interval_ticks: .long 0
gap_ticks:      .long 10000000

        .org    0xfff0
        .code16
        jmp     _start
        .org    0x10000
