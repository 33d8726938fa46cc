# SPDX-License-Identifier: GPL-3.0-or-later
# The guest of probe.py, placed at 0xfe00 of a 64 KiB firmware: real mode, long mode, five timer ticks, exit port.
        .section .text
        .code16
start:  cli
        xorw %ax, %ax
        movw %ax, %ds
        movw %ax, %ss
        movw %ax, %es
        movw $0x7000, %sp
        # page tables at 0x1000..0x3fff: identity pages for the first and the last 2 MiB below 4 GiB
        cld
        movl $0x1000, %edi
        xorl %eax, %eax
        movl $0x1400, %ecx       # 5 pages * 1024 dwords
        rep stosl %es:(%di)
        movl $0x2003, 0x1000
        movl $0x3003, 0x2000     # 0..1G
        movl $0x4003, 0x2018     # 3..4G
        movl $0x83, 0x3000       # 0..2M
        movl $0xffe00083, 0x4ff8 # top 2M
        movl $0xfee00093, 0x4fb8 # local APIC, uncached
        lgdtl %cs:(gdtr - base)
        movl $0x1000, %eax
        movl %eax, %cr3
        movl $0x20, %eax         # PAE
        movl %eax, %cr4
        movl $0xc0000080, %ecx
        rdmsr
        orl $0x100, %eax         # LME
        wrmsr
        movl %cr0, %eax
        orl $0x80000001, %eax    # PG|PE
        movl %eax, %cr0
        ljmpl $8, $(0xffff0000 + long - base)
        .code64
long:   movw $16, %ax
        movw %ax, %ds
        movw %ax, %es
        movw %ax, %ss
        movl $0x7000, %esp
        # IDT at 0x5000: vector 0x20 -> tick
        movl $0xffff0000 + (tick - base), %eax
        movw %ax, 0x5200
        movw $8, 0x5202
        movw $0x8e00, 0x5204
        shrl $16, %eax
        movw %ax, 0x5206
        movl $0, 0x5208
        movw $0xfff, 0x6000
        movq $0x5000, 0x6002
        lidt 0x6000
        movl $0xfee00000, %edx
        movl $0x1ff, 0xf0(%rdx)   # enable the local APIC
        movl $0x8700, 0x350(%rdx) # LINT0: the PIC
        # PIC: vectors 0x20, only IRQ 0; PIT: 1 kHz
        movb $0x11, %al
        outb %al, $0x20
        movb $0x20, %al
        outb %al, $0x21
        movb $0x04, %al
        outb %al, $0x21
        movb $0x01, %al
        outb %al, $0x21
        movb $0xfe, %al
        outb %al, $0x21
        movb $0x34, %al
        outb %al, $0x43
        movb $0xa9, %al
        outb %al, $0x40
        movb $0x04, %al
        outb %al, $0x40
        xorl %ebx, %ebx
        sti
wait:   hlt
        cmpl $5, %ebx
        jb wait
        movw $0xf4, %dx
        movb $0x31, %al
        outb %al, %dx
        cli
halt:   hlt
        jmp halt
tick:   incl %ebx
        movb $0x20, %al
        outb %al, $0x20
        iretq
        .balign 8
gdt:    .quad 0
        .quad 0x00af9a000000ffff
        .quad 0x00cf92000000ffff
gdtr:   .word 23
        .long 0xffff0000 + (gdt - base)
        .globl base
        .set base, start - 0xfe00
